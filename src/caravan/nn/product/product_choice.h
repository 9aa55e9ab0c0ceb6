#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace caravan {

/// What multiplies fp32 matrices on the CPU: `tiles` of our own (panel_product.h, tile_product.h). `blas` is
/// torch's BLAS where that is not MKL.
enum class ProductLibrary : uint8_t { tiles, mkl, blas };

/// The arithmetic of an operation on bf16 tensors.
enum class Bf16Arithmetic : uint8_t {
  /// Of bf16: in tiles if these are chosen, else by torch, which may emulate it. Gradients of
  /// weights: always in tiles, where the processor has such. Few rows: see few_rows_product.h.
  native,
  fp32,  ///< in fp32: operands are widened, the result is rounded once. Of attention, see TileOperands
};

/// The products of a linear layer, y = x w^T.
enum class ProductKind : uint8_t {
  forward,  ///< y = x w^T
  dx,       ///< dx = dy w
  dw,       ///< dw = dy^T x
};

/// For products of fewer rows it costs more than it saves to pack the weight, or to widen it: few_rows_product.h reads
/// it as it is. Those of gradients are torch's own.
inline constexpr int64_t kFewRows = 16;

/// Which library and arithmetic compute what. The choice affects speed and the last bits of results, so all ranks of a
/// run use the same one.
struct ProductChoice {
  ProductLibrary forward = ProductLibrary::tiles;
  ProductLibrary dx = ProductLibrary::tiles;
  ProductLibrary dw = ProductLibrary::tiles;
  Bf16Arithmetic bf16 = Bf16Arithmetic::native;
  Bf16Arithmetic attention = Bf16Arithmetic::native;

  ProductLibrary library(ProductKind kind) const noexcept;
  bool operator==(const ProductChoice&) const noexcept = default;
};

std::string_view name(ProductLibrary library) noexcept;
std::string_view name(Bf16Arithmetic arithmetic) noexcept;
std::string_view name(ProductKind kind) noexcept;

/// "mkl bf16=fp32 attention=fp32", or "forward=mkl dx=mkl dw=tiles bf16=native attention=native". Complete: another
/// process reads the same choice from it, whatever its processor. What bf16 instructions are is not part of it.
std::string to_text(const ProductChoice& choice);

/// `base`, changed by the words of `text`: a library, or KEY=VALUE with the keys of to_text. Throws UsageError for a
/// word it does not know and for a library that is not in `available`.
ProductChoice parse_product_choice(std::string_view text, const ProductChoice& base,
                                   const std::vector<ProductLibrary>& available);

/// The fastest choice on a class of processors (see processor_class), as measured; the .cpp file has the figures.
/// `available`: what torch was built with; never empty.
ProductChoice product_rule(std::string_view processor, const std::vector<ProductLibrary>& available);

/// The file in which `caravan doctor --tune` keeps its choice for a class of processors.
std::filesystem::path tuned_products_file(const std::filesystem::path& cache, std::string_view processor);
void write_tuned_products(const std::filesystem::path& cache, std::string_view processor, const std::string& text);
/// The choice in it; what it leaves out is from `base`. Nothing if there is no such file. Throws DataError if it is of
/// another class, damaged, or names a library that is not in `available`.
std::optional<ProductChoice> read_tuned_products(const std::filesystem::path& cache, std::string_view processor,
                                                 const ProductChoice& base,
                                                 const std::vector<ProductLibrary>& available);

}  // namespace caravan
