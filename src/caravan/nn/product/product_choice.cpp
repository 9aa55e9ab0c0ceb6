#include "caravan/nn/product/product_choice.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

constexpr std::array<std::string_view, 3> kLibraries{"tiles", "mkl", "blas"};
constexpr std::array<std::string_view, 2> kArithmetics{"native", "fp32"};
constexpr std::array<std::string_view, 3> kKinds{"forward", "dx", "dw"};

/// Every word that parse_product_choice accepts.
std::vector<std::string> valid_words(const std::vector<ProductLibrary>& available) {
  std::vector<std::string> words;
  for (const ProductLibrary library : available) words.emplace_back(name(library));
  for (const std::string_view key : kKinds) {
    for (const ProductLibrary library : available) words.push_back(fmt::format("{}={}", key, name(library)));
  }
  for (const char* key : {"bf16", "attention"}) {
    for (const std::string_view arithmetic : kArithmetics) words.push_back(fmt::format("{}={}", key, arithmetic));
  }
  return words;
}

void change(std::string_view word, ProductChoice& choice) {
  const size_t equals = word.find('=');
  const std::string_view key = equals == std::string_view::npos ? "" : word.substr(0, equals);
  const std::string_view value = equals == std::string_view::npos ? word : word.substr(equals + 1);
  if (key == "bf16" || key == "attention") {
    const auto arithmetic = value == name(Bf16Arithmetic::fp32) ? Bf16Arithmetic::fp32 : Bf16Arithmetic::native;
    (key == "bf16" ? choice.bf16 : choice.attention) = arithmetic;
    return;
  }
  const auto found = std::ranges::find(kLibraries, value);
  const auto library = static_cast<ProductLibrary>(found - kLibraries.begin());
  if (key.empty() || key == "forward") choice.forward = library;
  if (key.empty() || key == "dx") choice.dx = library;
  if (key.empty() || key == "dw") choice.dw = library;
}

ProductLibrary first_available(std::initializer_list<ProductLibrary> wanted,
                               const std::vector<ProductLibrary>& available) {
  for (const ProductLibrary library : wanted) {
    if (std::ranges::find(available, library) != available.end()) return library;
  }
  return available.front();
}

}  // namespace

std::string_view name(ProductLibrary library) noexcept { return kLibraries[static_cast<size_t>(library)]; }
std::string_view name(Bf16Arithmetic arithmetic) noexcept { return kArithmetics[static_cast<size_t>(arithmetic)]; }
std::string_view name(ProductKind kind) noexcept { return kKinds[static_cast<size_t>(kind)]; }

ProductLibrary ProductChoice::library(ProductKind kind) const noexcept {
  switch (kind) {
    case ProductKind::dx: return dx;
    case ProductKind::dw: return dw;
    case ProductKind::forward: break;
  }
  return forward;
}

std::string to_text(const ProductChoice& choice) {
  const bool is_one = choice.forward == choice.dx && choice.dx == choice.dw;
  const std::string libraries =
      is_one ? std::string(name(choice.forward))
             : fmt::format("forward={} dx={} dw={}", name(choice.forward), name(choice.dx), name(choice.dw));
  return fmt::format("{} bf16={} attention={}", libraries, name(choice.bf16), name(choice.attention));
}

ProductChoice parse_product_choice(std::string_view text, const ProductChoice& base,
                                   const std::vector<ProductLibrary>& available) {
  const std::vector<std::string> valid = valid_words(available);
  ProductChoice choice = base;
  std::istringstream words{std::string(text)};
  for (std::string word; words >> word;) {
    // As checkpoints of earlier versions have it, whose tiles oneDNN multiplied.
    if (constexpr std::string_view kFormer = "onednn"; word.ends_with(kFormer)) {
      word.replace(word.size() - kFormer.size(), kFormer.size(), name(ProductLibrary::tiles));
    }
    if (std::ranges::find(valid, word) == valid.end()) {
      throw UsageError({.op = "products",
                        .subject = word,
                        .fact = "is not among what this torch can do: " + join(valid, ", "),
                        .action = fmt::format("use {}", nearest(word, valid))});
    }
    change(word, choice);
  }
  return choice;
}

// GFLOP/s of one thread at the shapes of small transformers, torch 2.13 (oneDNN 3.12 and its MKL):
//
//   class                   fp32 forward/dx/dw: oneDNN   MKL             bf16: native   widened
//   amd avx2 (Zen 3)        101 / 79-92 / 69-71          102-106         10-12          100-103
//   amd avx512_bf16 (Zen 4) 101-103                      half of that    221            -
//   intel avx2 (forced)     70-81 / 56-84 / 51-76        71-84           -              64-79
//   intel avx512_bf16       121-152 / 120-162 / 84-140   119-162         82             106-132
//
// These are oneDNN's dense products. On Zen 5 our tiles (block_product.h) reach 243 to 261, 98 % of two FMA of 512 bits
// a cycle, where oneDNN's tiles reach 240 to 263 and the same with operands that are in no cache 170 to 240. Limited to
// AVX2, a step of tiny takes 111 ms with tiles and 126 with MKL, one of small 685 and 755. Not measured on Intel yet.
// attention=native is left to those who ask for it: the weights and the gradients of scores are rounded, and a layout
// that splits heads is then further from one process (4.6e-2, width 16), and a step is no faster: tiny 41.6 ms with
// fp32 and 41.9 with native, small 211.7 and 208.7.
// Only x86 has it; with AMX fp32 is too slow.
// MKL takes AVX-512 on Intel's processors only. Intel's AVX512_BF16 without AMX multiplies at half the rate of fp32's
// FMA. AMX is far faster than fp32 in both, and is left to torch but for gradients of weights and few rows.
ProductChoice product_rule(std::string_view processor, const std::vector<ProductLibrary>& available) {
  const bool is_intel = processor.starts_with("intel");
  const bool is_x86 = is_intel || processor.starts_with("amd") || processor.starts_with("x86");
  const bool has_amx = processor.ends_with("amx");
  const bool has_fast_bf16 = !is_x86 || has_amx || (!is_intel && processor.ends_with("avx512_bf16"));
  using enum ProductLibrary;
  const bool prefers_tiles = !is_intel;
  const ProductLibrary library =
      prefers_tiles ? first_available({tiles, mkl}, available) : first_available({mkl, tiles}, available);
  return {.forward = library,
          .dx = library,
          .dw = library,
          .bf16 = has_fast_bf16 ? Bf16Arithmetic::native : Bf16Arithmetic::fp32,
          .attention = has_amx ? Bf16Arithmetic::native : Bf16Arithmetic::fp32};
}

std::filesystem::path tuned_products_file(const std::filesystem::path& cache, std::string_view processor) {
  std::string file = fmt::format("products-{}.txt", processor);
  std::ranges::replace(file, ' ', '-');
  return cache / file;
}

void write_tuned_products(const std::filesystem::path& cache, std::string_view processor, const std::string& text) {
  create_folders("doctor", cache);
  write_file_durably(tuned_products_file(cache, processor), fmt::format("{}\n{}\n", processor, text), "doctor");
}

std::optional<ProductChoice> read_tuned_products(const std::filesystem::path& cache, std::string_view processor,
                                                 const ProductChoice& base,
                                                 const std::vector<ProductLibrary>& available) {
  const std::filesystem::path file = tuned_products_file(cache, processor);
  std::ifstream in(file);
  if (!in) return std::nullopt;
  const auto unusable = [&](std::string fact) {
    return DataError({.op = "products",
                      .subject = file.string(),
                      .fact = std::move(fact),
                      .action = "delete it, or run caravan doctor --tune again"});
  };
  std::string of_class;
  std::string text;
  std::getline(in, of_class);
  std::getline(in, text);
  if (of_class != processor || text.empty()) {
    throw unusable(fmt::format("is not a choice for the class '{}'", processor));
  }
  try {
    return parse_product_choice(text, base, available);
  } catch (const UsageError& error) {
    throw unusable(fmt::format("'{}' {}", error.text().subject, error.text().fact));
  }
}

}  // namespace caravan
