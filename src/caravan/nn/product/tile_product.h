#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "caravan/nn/product/kernels.h"

namespace caravan {

inline constexpr int64_t kTileRows = 64, kTileColumns = 64;  ///< of a tile of a product's result

/// Whether products of tiles read x where it is: elements of a row are adjacent, and rows do not overlap.
bool has_rows(const at::Tensor& x);

/// c [m, n] (+)= a [m, k] b [k, n] on the calling thread, by oneDNN for the instruction set at hand: libtorch exports
/// its `brgemm`, which is a BLAS where oneDNN has none in fp32. For tiles that fit the caches. Rows are `stride`
/// elements apart. b of bf16 is paired (pack.h), k even.
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
/// Whether oneDNN multiplies tiles of bf16 here.
bool has_bf16_tiles();

/// The pieces in which at::parallel_for divides `count` tasks, each on its own thread.
int64_t num_chunks(int64_t count);

/// Whether add_tiled_product takes them: fp32, or bf16 with such tiles, not on an accelerator, rows contiguous, sum
/// contiguous and fp32.
bool is_tiled_sum(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);
/// sum [m, n] (+)= a^T b of [k, m] and [k, n]: the gradient of a weight, added where it is summed and not rounded to
/// bf16.
void add_tiled_product(const at::Tensor& sum, bool is_empty, const at::Tensor& a, const at::Tensor& b);

}  // namespace caravan
