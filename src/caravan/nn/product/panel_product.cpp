#include "caravan/nn/product/panel_product.h"

#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "caravan/base/numeric/simd.h"
#include "caravan/module/count_kernel.h"
#include "caravan/module/meta/accelerator_scope.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/product/pack.h"
#include "caravan/nn/product/tile_product.h"

namespace caravan {
namespace {

using kernels::Bf16;

constexpr int64_t kPanelBytes = 256 * 1024;  ///< of panels that rows are multiplied with at once: half of a small L2

int64_t num_panels(int64_t n) { return (n + kTileColumns - 1) / kTileColumns; }

/// Of the products that a tile is added up from. With few registers the rows of a panel are read more often: from L1.
int64_t depth_of_tiles() {
  constexpr int64_t kDepth = 512, kDepthOfAvx2 = 128;
  return simd::isa() >= simd::Isa::avx512 ? kDepth : kDepthOfAvx2;
}

/// Panels of a thread: [k][kTileColumns] each.
int64_t panels_at_once(int64_t k, int64_t panels, size_t element) {
  const int64_t bytes = k * kTileColumns * static_cast<int64_t>(element);
  return std::clamp<int64_t>(kPanelBytes / std::max<int64_t>(bytes, 1), 1, std::max<int64_t>(panels, 1));
}

/// Threads that have no panel of their own share one, by rows.
struct Division {
  int64_t panels, parts, rows_of_part;
};
Division division(int64_t m, int64_t n) {
  const int64_t panels = num_panels(n), threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t tiles = (m + kTileRows - 1) / kTileRows;
  const int64_t wanted = std::clamp<int64_t>(threads / std::max<int64_t>(panels, 1), 1, std::max<int64_t>(tiles, 1));
  const int64_t rows = (tiles + wanted - 1) / wanted * kTileRows;
  return {panels, (m + rows - 1) / rows, rows};
}

/// The rows of the next tile. oneDNN keeps a kernel for each number of rows that it was ever called with, and experts
/// have other numbers of tokens in each step: powers of two are few.
int64_t next_rows(int64_t left) {
  return std::min(kTileRows, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(left))));
}

template <class E>
void pack_panel(const at::Tensor& b, int64_t first, int64_t columns, E* panel) {
  const int64_t k = b.size(1);
  const bool has_rows = b.stride(1) == 1;
  const int64_t stride = has_rows ? b.stride(0) : b.stride(1);
  const E* from = data_of<E>(b) + (has_rows ? first * stride : first);
  if constexpr (std::is_same_v<E, float>) {
    if (has_rows) return kernels::transpose(from, stride, columns, k, panel, kTileColumns);
    kernels::pack_rows(from, stride, k, columns, panel, k, kTileColumns);
  } else {
    if (has_rows) return kernels::transpose_pairs(from, stride, columns, k, panel, kTileColumns);
    kernels::pack_row_pairs(from, stride, k, columns, panel, k, kTileColumns);
  }
}

template <class E, class Out>
void multiply_rows(const at::Tensor& a, const E* panels, int64_t num, int64_t first_column, int64_t first_row,
                   int64_t end_row, const float* bias, const at::Tensor& y) {
  const int64_t n = y.size(1), k = a.size(1), depth = depth_of_tiles();
  std::array<float, std::is_same_v<Out, float> ? 1 : kTileRows * kTileColumns> rounded_later;
  for (int64_t row = first_row, rows = 0; row < end_row; row += rows) {
    rows = next_rows(end_row - row);
    const E* left = data_of<E>(a) + row * a.stride(0);
    for (int64_t panel = 0; panel < num; ++panel) {
      const int64_t column = first_column + panel * kTileColumns, columns = std::min(kTileColumns, n - column);
      Out* to = data_of<Out>(y) + row * n + column;
      float* tile = rounded_later.data();
      int64_t stride = kTileColumns;
      if constexpr (std::is_same_v<Out, float>) tile = to, stride = n;
      for (int64_t i = 0; i < rows && bias != nullptr; ++i) std::copy_n(bias + column, columns, tile + i * stride);
      for (int64_t first = 0; first < k; first += depth) {
        multiply_tile(rows, columns, std::min(depth, k - first), left + first, a.stride(0),
                      panels + panel * k * kTileColumns + first * kTileColumns, kTileColumns, tile, stride,
                      first > 0 || bias != nullptr);
      }
      if constexpr (!std::is_same_v<Out, float>) kernels::narrow_rows(tile, kTileColumns, rows, columns, to, n);
    }
  }
}

template <class E, class Out>
void multiply(const at::Tensor& a, const at::Tensor& b, const float* bias, const at::Tensor& y) {
  const int64_t m = y.size(0), n = y.size(1), k = a.size(1);
  const auto [num, parts, rows_of_part] = division(m, n);
  const int64_t at_once = parts > 1 ? 1 : panels_at_once(k, num, sizeof(E));
  at::parallel_for(0, num * parts, 1, [&, parts = parts, rows_of_part = rows_of_part](int64_t begin, int64_t end) {
    const TileScope scope;
    const at::Tensor memory = at::empty({at_once, k, kTileColumns}, a.options());
    E* panels = data_of<E>(memory);
    for (int64_t task = begin, count = 0; task < end; task += count) {
      count = std::min(at_once, end - task);
      const int64_t column = task / parts * kTileColumns, row = task % parts * rows_of_part;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t first = column + i * kTileColumns;
        pack_panel(b, first, std::min(kTileColumns, n - first), panels + i * k * kTileColumns);
      }
      multiply_rows<E, Out>(a, panels, count, column, row, std::min(row + rows_of_part, m), bias, y);
    }
  });
}

/// Pairs are read at even distances.
bool is_packable(const at::Tensor& b) {
  const bool is_half = b.scalar_type() == at::kBFloat16;
  return b.stride(1) == 1 ? !is_half || b.stride(0) % 2 == 0 : b.stride(0) == 1;
}

}  // namespace

bool is_panel_product(const at::Tensor& a, const at::Tensor& b) {
  const at::ScalarType type = a.scalar_type();
  return b.scalar_type() == type && !is_on_accelerator(a) && a.numel() > 0 && b.numel() > 0 &&
         (type == at::kFloat || (type == at::kBFloat16 && a.size(1) % 2 == 0 && has_bf16_tiles()));
}

at::Tensor panel_product(const at::Tensor& a_in, const at::Tensor& b_in, const std::optional<at::Tensor>& bias_in,
                         at::ScalarType type) {
  const at::Tensor a = has_rows(a_in) ? a_in : a_in.contiguous(), b = is_packable(b_in) ? b_in : b_in.contiguous();
  const at::Tensor bias = bias_in.has_value() ? bias_in->to(at::kFloat).contiguous() : at::Tensor();
  const int64_t m = a.size(0), n = b.size(0), k = a.size(1);
  const at::Tensor y = at::empty({m, n}, a.options().dtype(type));
  count_product(bias.defined() ? "addmm" : "mm", a.scalar_type(), m, n, k);
  if (y.is_meta()) {
    const KernelLogScope uncounted(nullptr);
    const auto [num, parts, rows] = division(m, n);
    const int64_t at_once = parts > 1 ? 1 : panels_at_once(k, num, a.element_size());
    at::empty({num_chunks(num * parts), at_once, k, kTileColumns}, a.options());
    return y;
  }
  const float* added = bias.defined() ? data_of<float>(bias) : nullptr;
  with_dtype("product", type, [&](auto out) {
    using Out = decltype(out);
    if constexpr (!std::is_same_v<Out, double>) {
      if (a.scalar_type() == at::kFloat) return multiply<float, Out>(a, b, added, y);
      return multiply<Bf16, Out>(a, b, added, y);
    }
  });
  return y;
}

}  // namespace caravan
