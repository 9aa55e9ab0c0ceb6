#include "caravan/nn/product/panel_product.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include <ATen/ops/empty.h>

#include "caravan/base/parallel_for.h"
#include "caravan/module/count_kernel.h"
#include "caravan/module/meta/accelerator_scope.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/product/block_product.h"
#include "caravan/nn/product/pack.h"
#include "caravan/nn/product/tile_product.h"

namespace caravan {
namespace {

using kernels::Bf16;

constexpr int64_t kPanelBytes = 256 * 1024;  ///< of panels that rows are multiplied with at once: half of a small L2
/// Of one panel. Longer columns are cut into blocks. All panels are multiplied with a block before the next block
/// begins, so that its part of the rows comes from a near cache.
constexpr int64_t kMostPanelBytes = kPanelBytes / 2 * 3;
/// The same for results that are rounded, whose blocks would need sums in fp32 beside them.
constexpr int64_t kMostRoundedPanelBytes = 4 * kPanelBytes;

/// Terms of one of the products of bf16 that oneDNN adds a tile up from.
constexpr int64_t kDepthOfTiles = 512;

/// How a product is divided over threads: by panels, and where these are few also by rows.
struct Division {
  Division(int64_t m, int64_t n, int64_t k, size_t element, bool is_rounded) : panels(num_tiles(n)) {
    constexpr int64_t kTasksPerThread = 3;
    const int64_t threads = num_loop_threads();
    const int64_t tiles = num_tiles(m);
    const bool is_even = threads == 1 || panels % threads == 0 || panels >= kTasksPerThread * threads;
    const int64_t wanted = is_even ? 1 : std::min(tiles, (kTasksPerThread * threads + panels - 1) / panels);
    rows = (tiles + wanted - 1) / wanted * kTileRows;
    parts = (m + rows - 1) / rows;
    const int64_t of_row = kTileColumns * static_cast<int64_t>(element);
    // Blocks then have whole sums, and give the bits of a panel that is not cut.
    static_assert(kMostPanelBytes % (kTileColumns * kernels::kTermsOfSum * sizeof(float)) == 0);
    depth = std::min(k, (is_rounded ? kMostRoundedPanelBytes : kMostPanelBytes) / of_row);
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

/// y of `Out` = a b^T + bias, or += a b^T. Where Out is not fp32, all of k is in a panel.
template <class E, class Out>
class PanelProduct {
 public:
  PanelProduct(const at::Tensor& a, const at::Tensor& b, const float* bias, const at::Tensor& y, bool adds,
               const Division& division)
      : b_(b),
        left_(data_of<E>(a)),
        stride_(a.size(0) == 1 ? a.size(1) : a.stride(0)),
        y_(data_of<Out>(y)),
        bias_(bias),
        adds_(adds),
        m_(y.size(0)),
        n_(y.size(1)),
        k_(a.size(1)),
        division_(division) {}

  /// Tasks are numbered by panel, then by part of the rows.
  void run(int64_t begin, int64_t end, E* panels) const {
    Slice packed;
    for (int64_t k = 0; k < k_; k += division_.depth) {
      for (int64_t task = begin; task < end;) {
        const Slice slice = slice_of(task, end, k);
        task += slice.num;
        const bool is_last = k + slice.depth == k_;
        const Slice next = task < end ? slice_of(task, end, k)
                           : is_last  ? Slice{}
                                      : slice_of(begin, end, k + slice.depth);
        if (!packed.has_panels_of(slice)) pack(slice, panels);
        multiply_rows(panels, slice, next);
        packed = slice;
      }
    }
  }

 private:
  /// Terms [k, k + depth) of `num` panels from `panel` on, with rows [row, end).
  struct Slice {
    int64_t panel = 0, num = 0, row = 0, end = 0, k = 0, depth = 0;
    /// With other rows.
    bool has_panels_of(const Slice& other) const { return panel == other.panel && num == other.num && k == other.k; }
  };
  Slice slice_of(int64_t task, int64_t end, int64_t k) const {
    const int64_t row = task % division_.parts * division_.rows;
    return {task / division_.parts,
            std::min(division_.at_once, end - task),
            row,
            std::min(row + division_.rows, m_),
            k,
            std::min(division_.depth, k_ - k)};
  }
  int64_t column(const Slice& slice) const { return slice.panel * kTileColumns; }
  int64_t columns(const Slice& slice) const { return std::min(slice.num * kTileColumns, n_ - column(slice)); }

  void pack(const Slice& slice, E* panels) const {
    for (int64_t i = 0; i < slice.num; ++i) {
      const int64_t first = (slice.panel + i) * kTileColumns;
      pack_panel(b_, first, std::min(kTileColumns, n_ - first), slice.k, slice.depth,
                 panels + i * slice.depth * kTileColumns);
    }
  }

  void multiply_rows(const E* panels, const Slice& slice, const Slice& next) const {
    constexpr bool kIsDirect = std::is_same_v<Out, float>;
    std::array<float, kIsDirect ? 1 : kTileRows * kTileColumns> rounded_later;
    for (int64_t row = slice.row, rows = 0; row < slice.end; row += rows) {
      rows = rows_of_tile(slice.end - row);
      kernels::Fetch fetch = fetch_of(row, rows, slice, next);
      for (int64_t panel = 0; panel < slice.num; ++panel) {
        const int64_t from = column(slice) + panel * kTileColumns, width = std::min(kTileColumns, n_ - from);
        Out* to = y_ + row * n_ + from;
        float* tile = rounded_later.data();
        int64_t stride = kTileColumns;
        if constexpr (kIsDirect) {
          tile = to, stride = n_;
        } else if (adds_) {
          kernels::pack_rows(to, n_, rows, width, tile, rows, kTileColumns);
        }
        const E* left = left_ + row * stride_ + slice.k;
        const E* right = panels + panel * slice.depth * kTileColumns;
        const float* bias = bias_ == nullptr ? nullptr : bias_ + from;
        multiply(rows, width, slice.depth, left, right, tile, stride, slice.k == 0 && !adds_, bias, fetch);
        if constexpr (!kIsDirect) kernels::narrow_rows(tile, kTileColumns, rows, width, to, n_);
      }
    }
  }

  /// Whether tiles are blocks of block_product.h, else they are oneDNN's, which keeps a kernel for each length.
  static bool uses_blocks() { return std::is_same_v<E, float> || has_pair_tiles(); }
  static int64_t rows_of_tile(int64_t left) {
    return uses_blocks() ? std::min(left, kTileRows) : next_piece(left, kTileRows);
  }

  /// Of the tiles of these rows: the rows that follow, of a and y, and a share of the panels of the next slice.
  kernels::Fetch fetch_of(int64_t row, int64_t rows, const Slice& slice, const Slice& next) const {
    const bool is_last = row + rows == slice.end;
    const Slice& of = is_last ? next : slice;
    const int64_t following = is_last ? next.row : row + rows, count = std::min(of.end - following, kTileRows);
    kernels::Fetch fetch;
    fetch.add(left_ + following * stride_ + of.k, stride_, count, of.depth);
    fetch.add(y_ + following * n_ + column(of), n_, count, columns(of), /*is_written=*/true);
    const bool has_rows = b_.stride(1) == 1;
    const int64_t stride = has_rows ? b_.stride(0) : b_.stride(1), length = has_rows ? columns(next) : next.depth;
    const int64_t all = slice.end - slice.row, first = (row - slice.row) * length / all;
    const int64_t end = (row + rows - slice.row) * length / all;
    const E* from = data_of<E>(b_) +
                    (has_rows ? (column(next) + first) * stride + next.k : (next.k + first) * stride + column(next));
    if (!next.has_panels_of(slice)) fetch.add(from, stride, end - first, has_rows ? next.depth : columns(next));
    fetch.spread_over(rows, columns(slice), slice.depth / static_cast<int64_t>(sizeof(float) / sizeof(E)));
    return fetch;
  }

  /// tile (+)= left right: it starts with the bias, or with what it holds. fp32 takes k in one order for any depth.
  void multiply(int64_t rows, int64_t columns, int64_t depth, const E* left, const E* right, float* tile,
                int64_t stride, bool starts, const float* bias, kernels::Fetch& fetch) const {
    if constexpr (std::is_same_v<E, float>) {
      kernels::multiply_block(rows, columns, depth, {left, stride_}, {right, kTileColumns}, tile, stride, !starts, bias,
                              &fetch);
    } else if (uses_blocks()) {
      kernels::multiply_block(rows, columns, depth / 2, {pairs(left), stride_ / 2}, {pairs(right), kTileColumns}, tile,
                              stride, !starts, bias, &fetch);
    } else {
      for (int64_t i = 0; i < rows && starts && bias != nullptr; ++i) std::copy_n(bias, columns, tile + i * stride);
      for (int64_t first = 0; first < depth; first += kDepthOfTiles) {
        multiply_tile(rows, columns, std::min(kDepthOfTiles, depth - first), left + first, stride_,
                      right + first * kTileColumns, kTileColumns, tile, stride,
                      !starts || first > 0 || bias != nullptr);
      }
    }
  }

  const at::Tensor& b_;
  const E* left_;
  int64_t stride_;
  Out* y_;
  const float* bias_;
  bool adds_;
  int64_t m_, n_, k_;
  const Division& division_;
};

template <class E, class Out>
void multiply(const at::Tensor& a, const at::Tensor& b, const float* bias, const at::Tensor& y, bool adds,
              const Division& division, const ThreadScratch& scratch) {
  const PanelProduct<E, Out> product(a, b, bias, y, adds, division);
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
bool has_pairs(const at::Tensor& x) { return x.scalar_type() != at::kBFloat16 || x.stride(0) % 2 == 0; }
bool is_packable(const at::Tensor& b) { return b.stride(1) == 1 ? has_pairs(b) : b.stride(0) == 1; }

/// Operands as panels read them, for a result of `type`.
struct PanelOperands {
  PanelOperands(const at::Tensor& a_in, const at::Tensor& b_in, at::ScalarType type)
      : a(has_rows(a_in) && has_pairs(a_in) ? a_in : contiguous(a_in)),
        b(is_packable(b_in) ? b_in : contiguous(b_in)),
        is_rounded(type != at::kFloat),
        division(a.size(0), b.size(0), a.size(1), a.element_size(), is_rounded) {}
  /// Whether the result needs sums in fp32 beside it.
  bool is_in_parts() const { return is_rounded && division.depth < a.size(1); }
  at::Tensor a, b;
  bool is_rounded;
  Division division;
};

/// y = a b^T + bias, or y += a b^T.
void multiply_panels(const PanelOperands& x, const at::Tensor& bias, const at::Tensor& y, bool adds) {
  const Division& division = x.division;
  count_product(bias.defined() ? "addmm" : "mm", x.a.scalar_type(), y.size(0), y.size(1), x.a.size(1));
  const KernelLogScope uncounted(nullptr);
  const ThreadScratch scratch(division.tasks(), division.at_once * division.depth * kTileColumns, x.a.options());
  if (y.is_meta()) return;
  const float* added = bias.defined() ? data_of<float>(bias) : nullptr;
  with_dtype("product", y.scalar_type(), [&](auto out) {
    using Out = decltype(out);
    if constexpr (!std::is_same_v<Out, double>) {
      if (x.a.scalar_type() == at::kFloat) return multiply<float, Out>(x.a, x.b, added, y, adds, division, scratch);
      return multiply<Bf16, Out>(x.a, x.b, added, y, adds, division, scratch);
    }
  });
}

}  // namespace

bool is_panel_product(const at::Tensor& a, const at::Tensor& b) {
  const at::ScalarType type = a.scalar_type();
  return b.scalar_type() == type && !is_on_accelerator(a) && a.numel() > 0 && b.numel() > 0 &&
         (type == at::kFloat || (type == at::kBFloat16 && a.size(1) % 2 == 0 && has_bf16_tiles()));
}

at::Tensor panel_product(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias_in,
                         at::ScalarType type) {
  const PanelOperands operands(a, b, type);
  if (operands.is_in_parts()) return panel_product(operands.a, operands.b, bias_in, at::kFloat).to(type);
  const at::Tensor bias = bias_in.has_value() ? bias_in->to(at::kFloat).contiguous() : at::Tensor();
  at::Tensor y = at::empty({a.size(0), b.size(0)}, a.options().dtype(type));
  multiply_panels(operands, bias, y, /*adds=*/false);
  return y;
}

void add_panel_product(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b) {
  const PanelOperands operands(a, b, y.scalar_type());
  if (operands.is_in_parts()) {
    y.add_(panel_product(operands.a, operands.b, std::nullopt, at::kFloat));
  } else {
    multiply_panels(operands, {}, y, /*adds=*/true);
  }
}

}  // namespace caravan
