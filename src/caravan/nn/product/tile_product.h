#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "caravan/nn/product/block_product.h"
#include "caravan/nn/product/kernels.h"

namespace caravan {

inline constexpr int64_t kTileRows = 64, kTileColumns = 64;  ///< of a tile of a product's result
/// Of so many rows, or columns.
inline int64_t num_tiles(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }
/// The length of the next piece of `left`: `most`, or a smaller power of two. oneDNN keeps a kernel for each length
/// that it was ever called with, and experts have other numbers of tokens in each step.
int64_t next_piece(int64_t left, int64_t most);

/// Whether products of tiles read x where it is: elements of a row are adjacent, and rows do not overlap.
bool has_rows(const at::Tensor& x);
/// Whether products are faster in tiles of fp32 (block_product.h) here than by a BLAS, and whether there are tiles of
/// bf16: pairs of block_product.h where they are faster than oneDNN's, which has AMX, else those.
bool has_fp32_tiles();
bool has_bf16_tiles();
bool has_pair_tiles();

/// As they are in memory.
const kernels::Pair* pairs(const kernels::Bf16* x);

/// c [m, n] (+)= a [m, k] b [k, n] on the calling thread: by block_product.h, or of bf16 by oneDNN for the instruction
/// set at hand, whose `brgemm` libtorch exports. For tiles that fit the caches. Rows are `stride` elements apart. b of
/// bf16 is paired (pack.h), k even.
void multiply_tile(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                   float* c, int64_t c_stride, bool adds);
void multiply_tile(int64_t m, int64_t n, int64_t k, const kernels::Bf16* a, int64_t a_stride, const kernels::Bf16* b,
                   int64_t b_stride, float* c, int64_t c_stride, bool adds);
/// Lives while a thread multiplies tiles: AMX keeps state in registers that other code must not find.
class TileScope {
 public:
  TileScope() = default;
  ~TileScope();
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

/// Memory of the threads among which parallel_for divides `count` tasks: `elements` for each. Allocated by the
/// caller, so that it is counted as the caller's, on meta tensors too.
class ThreadScratch {
 public:
  ThreadScratch(int64_t count, int64_t elements, const at::TensorOptions& options);
  /// That of the calling thread, inside parallel_for.
  template <class T>
  T* own() const {
    return static_cast<T*>(memory_.data_ptr()) + row_of_thread() * memory_.size(1);
  }

 private:
  int64_t row_of_thread() const;

  at::Tensor memory_;
};

/// Whether add_tiled_product takes them: fp32, or bf16 with such tiles, not on an accelerator, rows contiguous, sum
/// contiguous and fp32.
bool is_tiled_sum(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);
/// sum [m, n] (+)= a^T b of [k, m] and [k, n]: the gradient of a weight, added where it is summed and not rounded to
/// bf16. How many terms are added at a time depends on the strides of a and b.
void add_tiled_product(const at::Tensor& sum, bool is_empty, const at::Tensor& a, const at::Tensor& b);

}  // namespace caravan
