#include "caravan/nn/product/tile_product.h"

#include <algorithm>
#include <array>
#include <bit>
#include <exception>

#include <ATen/Context.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/numeric/simd.h"
#include "caravan/base/parallel_for.h"
#include "caravan/module/count_kernel.h"
#include "caravan/module/meta/accelerator_scope.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/product/pack.h"

namespace caravan {
namespace {

using kernels::Bf16;

/// Of the products of a tile.
template <class E>
constexpr int64_t kDepth = 1024 / sizeof(E);
/// Of left operands: rows a power of two apart would share lines of the cache.
template <class E>
constexpr int64_t kPitch = kDepth<E> + 64 / sizeof(E);

/// The right operand: rows of fp32 where they are, bf16 paired.
template <class E>
struct RightOperand {
  const E* rows;
  int64_t stride;
  at::Tensor memory;
  /// From row k, which is even, and column n on.
  const E* at(int64_t k, int64_t n) const { return rows + k * stride + (sizeof(E) == 2 ? 2 : 1) * n; }
};

RightOperand<float> right_operand(const at::Tensor& b, float) {
  return {data_of<float>(b), b.size(0) == 1 ? b.size(1) : b.stride(0), {}};
}
RightOperand<Bf16> right_operand(const at::Tensor& b, Bf16) {
  const int64_t rows = b.size(0), columns = b.size(1);
  const at::Tensor memory = at::empty({(rows + 1) / 2 * 2, columns}, b.options());
  parallel_for(0, (rows + 1) / 2, 64, [&](int64_t begin, int64_t end) {
    kernels::pack_row_pairs(data_of<Bf16>(b) + 2 * begin * b.stride(0), b.stride(0),
                            std::min(2 * end, rows) - 2 * begin, columns, data_of<Bf16>(memory) + 2 * begin * columns,
                            2 * (end - begin), columns);
  });
  return {data_of<Bf16>(memory), columns, memory};
}

/// c [m, n] (+)= a^T b. A block of rows of b is multiplied with all that the thread computes while it is in the cache.
/// Each tile adds up k in the same order on any number of threads.
template <class E>
void multiply_transposed(const at::Tensor& a, const at::Tensor& b, float* c, int64_t c_stride, bool adds) {
  const int64_t m = a.size(1), n = b.size(1), k = a.size(0);
  const RightOperand<E> right = right_operand(b, E{});
  const ThreadScratch scratch(num_tiles(m), kTileRows * kPitch<E>, a.options());
  parallel_for(0, num_tiles(m), 1, [&](int64_t begin, int64_t end) {
    const TileScope scope;
    E* left = scratch.own<E>();
    for (int64_t first = 0, depth = 0; first < k; first += depth) {
      depth = next_piece(k - first, kDepth<E>);
      const int64_t padded = sizeof(E) == 2 ? (depth + 1) / 2 * 2 : depth;
      for (int64_t row = begin * kTileRows; row < std::min(end * kTileRows, m); row += kTileRows) {
        const int64_t rows = std::min(kTileRows, m - row);
        kernels::transpose(data_of<E>(a) + first * a.stride(0) + row, a.stride(0), depth, rows, left, kPitch<E>);
        for (int64_t i = 0; i < rows && depth < padded; ++i) left[i * kPitch<E> + depth] = E{};
        for (int64_t column = 0; column < n; column += kTileColumns) {
          multiply_tile(rows, std::min(kTileColumns, n - column), padded, left, kPitch<E>, right.at(first, column),
                        right.stride, c + row * c_stride + column, c_stride, adds || first > 0);
        }
      }
    }
  });
}

bool has_tiles(const at::Tensor& a, const at::Tensor& b) {
  const at::ScalarType type = a.scalar_type();
  return b.scalar_type() == type && !is_on_accelerator(a) &&
         (type == at::kFloat || (type == at::kBFloat16 && has_bf16_tiles()));
}

/// Whether b^T a, transposed afterwards, costs fewer copies.
bool is_turned(int64_t m, int64_t n, int64_t k) { return k * n + 2 * m * n < k * m; }

template <class E>
void add_product_of(const at::Tensor& sum, bool is_empty, const at::Tensor& a, const at::Tensor& b) {
  const int64_t m = a.size(1), n = b.size(1);
  if (!is_turned(m, n, a.size(0))) return multiply_transposed<E>(a, b, data_of<float>(sum), n, !is_empty);
  const at::Tensor turned = at::empty({n, m}, sum.options());
  const float* from = data_of<float>(turned);
  multiply_transposed<E>(b, a, data_of<float>(turned), m, false);
  parallel_for(0, num_tiles(m), 1, [&](int64_t begin, int64_t end) {
    const int64_t row = begin * kTileRows, rows = std::min(end * kTileRows, m) - row;
    float* to = data_of<float>(sum) + row * n;
    if (is_empty) {
      kernels::transpose(from + row, m, n, rows, to, n);
    } else {
      kernels::add_transposed(from + row, m, n, rows, to, n);
    }
  });
}

}  // namespace

void multiply_tile(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                   float* c, int64_t c_stride, bool adds) {
  at::native::cpublas::brgemm(m, n, k, a_stride, b_stride, c_stride, adds, a, b, c, /*is_vnni=*/false);
}
void multiply_tile(int64_t m, int64_t n, int64_t k, const Bf16* a, int64_t a_stride, const Bf16* b, int64_t b_stride,
                   float* c, int64_t c_stride, bool adds) {
  at::native::cpublas::brgemm(m, n, k, a_stride, b_stride, c_stride, adds, reinterpret_cast<const at::BFloat16*>(a),
                              reinterpret_cast<const at::BFloat16*>(b), c, /*is_vnni=*/true);
}

TileScope::~TileScope() { at::native::cpublas::brgemm_release(); }

int64_t next_piece(int64_t left, int64_t most) {
  return std::min(most, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(left))));
}

bool has_rows(const at::Tensor& x) { return x.stride(1) == 1 && (x.size(0) == 1 || x.stride(0) >= x.size(1)); }

ThreadScratch::ThreadScratch(int64_t count, int64_t elements, const at::TensorOptions& options) {
  const int64_t of_thread = std::max<int64_t>((count + num_loop_threads() - 1) / num_loop_threads(), 1);
  memory_ = at::empty({(count + of_thread - 1) / of_thread, elements}, options);
}

int64_t ThreadScratch::row_of_thread() const {
  const int64_t thread = at::get_thread_num();
  if (thread < memory_.size(0)) return thread;
  throw InternalError(
      {"threads", "", fmt::format("thread {} of a loop that was planned for {}", thread, memory_.size(0)), "", ""});
}

bool has_fp32_tiles() { return at::globalContext().userEnabledMkldnn() && simd::detected_isa() >= simd::Isa::avx2; }

bool has_bf16_tiles() {
  static const bool can = [] {
    constexpr int64_t kSide = 16;
    const std::array<Bf16, kSide * kSide> operand{};
    std::array<float, kSide * kSide> result;
    const TileScope scope;
    try {
      multiply_tile(kSide, kSide, kSide, operand.data(), kSide, operand.data(), kSide, result.data(), kSide, false);
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }();
  return can && has_fp32_tiles();
}

bool is_tiled_sum(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  return has_tiles(a, b) && sum.scalar_type() == at::kFloat && sum.is_contiguous() && has_rows(a) && has_rows(b) &&
         a.numel() > 0 && b.numel() > 0;
}

void add_tiled_product(const at::Tensor& sum, bool is_empty, const at::Tensor& a, const at::Tensor& b) {
  const int64_t m = a.size(1), n = b.size(1), k = a.size(0);
  count_product("mm", a.scalar_type(), m, n, k);
  if (sum.is_meta()) {
    const KernelLogScope uncounted(nullptr);
    const bool turned = is_turned(m, n, k);
    const at::Tensor of_result = at::empty({turned ? n : 0, m}, sum.options());
    const bool is_half = a.scalar_type() == at::kBFloat16;
    const at::Tensor paired = at::empty({is_half ? (k + 1) / 2 * 2 : 0, turned ? m : n}, a.options());
    const int64_t pitch = is_half ? kPitch<Bf16> : kPitch<float>;
    const ThreadScratch scratch(num_tiles(turned ? n : m), kTileRows * pitch, a.options());
    return;
  }
  if (a.scalar_type() == at::kFloat) {
    add_product_of<float>(sum, is_empty, a, b);
  } else {
    add_product_of<Bf16>(sum, is_empty, a, b);
  }
}

}  // namespace caravan
