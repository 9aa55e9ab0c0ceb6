#include "caravan/nn/product/panel_product.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include <ATen/ops/empty.h>

#include "caravan/base/numeric/simd.h"
#include "caravan/base/parallel_for.h"
#include "caravan/module/count_kernel.h"
#include "caravan/module/meta/accelerator_scope.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/product/pack.h"
#include "caravan/nn/product/tile_product.h"

namespace caravan {
namespace {

using kernels::Bf16;

constexpr int64_t kPanelBytes = 256 * 1024;  ///< of panels that rows are multiplied with at once: half of a small L2
constexpr int64_t kMostPanelBytes = 4 * kPanelBytes;  ///< of one panel: longer columns are multiplied in blocks

/// Of the products that a tile is added up from. AVX2 has fewer registers and reads a panel more often: a shorter depth
/// keeps its rows in L1. Of the processor, not of CARAVAN_SIMD, which oneDNN does not follow: it decides bits.
int64_t depth_of_tiles() {
  constexpr int64_t kDepth = 512, kDepthOfAvx2 = 128;
  static const bool has_avx512 = simd::detected_isa() >= simd::Isa::avx512;
  return has_avx512 ? kDepth : kDepthOfAvx2;
}

/// How a product is divided over threads: by panels, and where these are few also by rows.
struct Division {
  Division(int64_t m, int64_t n, int64_t k, size_t element) : panels(num_tiles(n)) {
    constexpr int64_t kTasksPerThread = 3;
    const int64_t threads = num_loop_threads();
    const int64_t tiles = num_tiles(m);
    const bool is_even = threads == 1 || panels % threads == 0 || panels >= kTasksPerThread * threads;
    const int64_t wanted = is_even ? 1 : std::min(tiles, (kTasksPerThread * threads + panels - 1) / panels);
    rows = (tiles + wanted - 1) / wanted * kTileRows;
    parts = (m + rows - 1) / rows;
    const int64_t of_row = kTileColumns * static_cast<int64_t>(element);
    depth = std::min(k, kMostPanelBytes / of_row);
    at_once = parts > 1 ? 1 : std::clamp<int64_t>(kPanelBytes / (depth * of_row), 1, panels);
  }
  int64_t panels;
  int64_t parts, rows;  ///< of the rows
  int64_t depth;        ///< of panels that are packed
  int64_t at_once;      ///< panels that a thread packs

  int64_t tasks() const { return panels * parts; }
};

/// panel [depth][kTileColumns] = columns [first, first + columns) of b^T, from row `from_k` on.
template <class E>
void pack_panel(const at::Tensor& b, int64_t first, int64_t columns, int64_t from_k, int64_t depth, E* panel) {
  const bool has_rows = b.stride(1) == 1;
  const int64_t stride = has_rows ? b.stride(0) : b.stride(1);
  const E* from = data_of<E>(b) + (has_rows ? first * stride + from_k : from_k * stride + first);
  if constexpr (std::is_same_v<E, float>) {
    if (has_rows) return kernels::transpose(from, stride, columns, depth, panel, kTileColumns);
    kernels::pack_rows(from, stride, depth, columns, panel, depth, kTileColumns);
  } else {
    if (has_rows) return kernels::transpose_pairs(from, stride, columns, depth, panel, kTileColumns);
    kernels::pack_row_pairs(from, stride, depth, columns, panel, depth, kTileColumns);
  }
}

/// y of `Out` (+)= a b^T + bias. Where Out is not fp32, all of k is in a panel.
template <class E, class Out>
class PanelProduct {
 public:
  PanelProduct(const at::Tensor& a, const at::Tensor& b, const float* bias, const at::Tensor& y,
               const Division& division)
      : b_(b),
        left_(data_of<E>(a)),
        stride_(a.size(0) == 1 ? a.size(1) : a.stride(0)),
        y_(data_of<Out>(y)),
        bias_(bias),
        m_(y.size(0)),
        n_(y.size(1)),
        k_(a.size(1)),
        division_(division) {}

  /// Tasks are numbered by panel, then by part of the rows.
  void run(int64_t begin, int64_t end, E* panels) const {
    int64_t packed = -1;
    for (int64_t task = begin, count = 0; task < end; task += count) {
      count = std::min(division_.at_once, end - task);
      const int64_t panel = task / division_.parts, row = task % division_.parts * division_.rows;
      for (int64_t k = 0; k < k_; k += division_.depth) {
        const int64_t depth = std::min(division_.depth, k_ - k);
        const bool is_packed = packed == panel && depth == k_;
        for (int64_t i = 0; i < count && !is_packed; ++i) {
          const int64_t first = (panel + i) * kTileColumns;
          pack_panel(b_, first, std::min(kTileColumns, n_ - first), k, depth, panels + i * depth * kTileColumns);
        }
        multiply_rows(panels, panel, count, row, k, depth);
      }
      packed = panel;
    }
  }

 private:
  void multiply_rows(const E* panels, int64_t first_panel, int64_t num, int64_t first_row, int64_t k,
                     int64_t depth) const {
    constexpr bool kIsDirect = std::is_same_v<Out, float>;
    const int64_t end = std::min(first_row + division_.rows, m_), of_tile = depth_of_tiles();
    std::array<float, kIsDirect ? 1 : kTileRows * kTileColumns> rounded_later;
    for (int64_t row = first_row, rows = 0; row < end; row += rows) {
      rows = next_piece(end - row, kTileRows);
      for (int64_t panel = 0; panel < num; ++panel) {
        const int64_t column = (first_panel + panel) * kTileColumns, columns = std::min(kTileColumns, n_ - column);
        Out* to = y_ + row * n_ + column;
        float* tile = rounded_later.data();
        int64_t stride = kTileColumns;
        if constexpr (kIsDirect) tile = to, stride = n_;
        const bool starts = k == 0;
        for (int64_t i = 0; i < rows && starts && bias_ != nullptr; ++i) {
          std::copy_n(bias_ + column, columns, tile + i * stride);
        }
        for (int64_t first = 0; first < depth; first += of_tile) {
          multiply_tile(rows, columns, std::min(of_tile, depth - first), left_ + row * stride_ + k + first, stride_,
                        panels + (panel * depth + first) * kTileColumns, kTileColumns, tile, stride,
                        !starts || first > 0 || bias_ != nullptr);
        }
        if constexpr (!kIsDirect) kernels::narrow_rows(tile, kTileColumns, rows, columns, to, n_);
      }
    }
  }

  const at::Tensor& b_;
  const E* left_;
  int64_t stride_;
  Out* y_;
  const float* bias_;
  int64_t m_, n_, k_;
  const Division& division_;
};

template <class E, class Out>
void multiply(const at::Tensor& a, const at::Tensor& b, const float* bias, const at::Tensor& y,
              const Division& division, const ThreadScratch& scratch) {
  const PanelProduct<E, Out> product(a, b, bias, y, division);
  parallel_for(0, division.tasks(), 1, [&](int64_t begin, int64_t end) {
    const TileScope scope;
    product.run(begin, end, scratch.own<E>());
  });
}

/// As torch copies a matrix: on the CPU transposed ones go through a square of 60 columns.
at::Tensor contiguous(const at::Tensor& x) {
  constexpr int64_t kSquare = 60;
  const KernelLogScope uncounted(nullptr);  // a part of the product
  const at::Tensor copy = x.contiguous();
  if (x.is_meta() && x.numel() >= kSquare * kSquare) at::empty({kSquare, kSquare}, x.options());
  return copy;
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
  const at::Tensor a = has_rows(a_in) ? a_in : contiguous(a_in), b = is_packable(b_in) ? b_in : contiguous(b_in);
  const int64_t m = a.size(0), n = b.size(0), k = a.size(1);
  const Division division(m, n, k, a.element_size());
  if (division.depth < k && type != at::kFloat) return panel_product(a, b, bias_in, at::kFloat).to(type);
  const at::Tensor bias = bias_in.has_value() ? bias_in->to(at::kFloat).contiguous() : at::Tensor();
  const at::Tensor y = at::empty({m, n}, a.options().dtype(type));
  count_product(bias.defined() ? "addmm" : "mm", a.scalar_type(), m, n, k);
  const KernelLogScope uncounted(nullptr);
  const ThreadScratch scratch(division.tasks(), division.at_once * division.depth * kTileColumns, a.options());
  if (y.is_meta()) return y;
  const float* added = bias.defined() ? data_of<float>(bias) : nullptr;
  with_dtype("product", type, [&](auto out) {
    using Out = decltype(out);
    if constexpr (!std::is_same_v<Out, double>) {
      if (a.scalar_type() == at::kFloat) return multiply<float, Out>(a, b, added, y, division, scratch);
      return multiply<Bf16, Out>(a, b, added, y, division, scratch);
    }
  });
  return y;
}

}  // namespace caravan
