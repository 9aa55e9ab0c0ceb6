#include "caravan/nn/product/few_rows_product.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include <ATen/ops/empty.h>

#include "caravan/base/parallel_for.h"
#include "caravan/base/system/processor.h"
#include "caravan/module/count_kernel.h"
#include "caravan/module/meta/accelerator_scope.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/product/few_rows.h"
#include "caravan/nn/product/pack.h"
#include "caravan/nn/product/tile_product.h"

namespace caravan {
namespace {

using kernels::Bf16;

thread_local int64_t most_rows = kFewRows - 1;
thread_local bool is_each_alone = false;

constexpr int64_t kLeastWork = 64 * 1024;  ///< elements of the weight that are worth a thread

/// a in fp32, its rows padded with zeros to whole vectors; a itself where it is so.
at::Tensor packed_rows(const at::Tensor& a) {
  const int64_t pitch = (a.size(1) + kernels::kRowStep - 1) / kernels::kRowStep * kernels::kRowStep;
  if (a.scalar_type() == at::kFloat && pitch == a.size(1) && a.is_contiguous()) return a;
  const at::Tensor rows = a.stride(1) == 1 || a.size(1) == 1 ? a : a.contiguous();
  const at::Tensor packed = at::empty({a.size(0), pitch}, a.options().dtype(at::kFloat));
  if (packed.is_meta()) return packed;
  with_dtype("product", a.scalar_type(), [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, double>) {
      kernels::pack_rows(data_of<T>(rows), rows.stride(0), rows.size(0), rows.size(1), data_of<float>(packed),
                         rows.size(0), pitch);
    }
  });
  return packed;
}

template <class T, class Out>
void multiply(const at::Tensor& x, const at::Tensor& w, const float* bias, const at::Tensor& y) {
  const kernels::FewRows<T, Out> of{.x = data_of<float>(x),
                                    .pitch = x.size(1),
                                    .rows = x.size(0),
                                    .w = data_of<T>(w),
                                    .stride = w.stride(0),
                                    .k = w.size(1),
                                    .bias = bias,
                                    .y = data_of<Out>(y),
                                    .y_pitch = y.size(1)};
  constexpr int64_t kColumns = kernels::kWeightRows;
  const int64_t n = w.size(0), grain = std::max<int64_t>(1, kLeastWork / (kColumns * of.k));
  parallel_for(0, (n + kColumns - 1) / kColumns, grain, [&](int64_t begin, int64_t end) {
    alignas(64) std::array<float, kernels::few_rows_scratch(EachRowAlone::kMost)> scratch;
    kernels::multiply_few_rows(of, begin * kColumns, std::min(end * kColumns, n), scratch.data());
  });
}

constexpr int64_t kTileWidth = 16;    ///< of tiles of AMX; oneDNN keeps a kernel for each multiple
constexpr int64_t kMostAtOnce = 256;  ///< rows of the weight, whose products are turned together

/// A product of bf16 in oneDNN's tiles. The weight is the left operand, whose rows are read where they are; x, paired,
/// is the right one: more rows of it only make the tiles wider, and no element of a tile depends on its width.
template <class Out>
class ProductInTiles {
 public:
  /// `pairs`: x, [k / 2][width][2], of so many rows as y has, and zeros.
  ProductInTiles(const at::Tensor& w, const at::Tensor& pairs, int64_t width, const float* bias, const at::Tensor& y)
      : left_(data_of<Bf16>(w)),
        stride_(w.size(0) == 1 ? w.size(1) : w.stride(0)),
        right_(data_of<Bf16>(pairs)),
        width_(width),
        y_(data_of<Out>(y)),
        bias_(bias),
        m_(y.size(0)),
        n_(y.size(1)),
        k_(w.size(1)),
        streams_(width == kTileWidth ? kTileWidth : 2 * kTileWidth) {}

  /// Elements of the scratch of run().
  static int64_t scratch(int64_t width) { return (std::is_same_v<Out, float> ? 1 : 2) * kMostAtOnce * width; }

  /// Columns [first, end) of y.
  void run(int64_t first, int64_t end, float* products) const {
    const TileScope scope;
    const int64_t parts = (end - first + kMostAtOnce - 1) / kMostAtOnce;
    const int64_t most = ((end - first + parts - 1) / parts + kTileWidth - 1) / kTileWidth * kTileWidth;
    for (int64_t row = first; row < end; row += most) {
      const int64_t rows = std::min(most, end - row);
      multiply_rows(row, rows, products);
      if constexpr (std::is_same_v<Out, float>) {
        kernels::transpose(products, width_, rows, m_, y_ + row, n_);
      } else {
        float* turned = products + kMostAtOnce * width_;
        kernels::transpose(products, width_, rows, m_, turned, kMostAtOnce);
        kernels::narrow_rows(turned, kMostAtOnce, m_, rows, y_ + row, n_);
      }
    }
  }

 private:
  /// The rows of a tile are far apart in the weight: see Streams in few_rows.cpp.
  void multiply_rows(int64_t first, int64_t rows, float* products) const {
    const int64_t length = rows / streams_;
    for (int64_t i = 0; i < length; ++i) multiply_tile_at(first, i, streams_, length, products);
    for (int64_t i = length * streams_, count = 0; i < rows; i += count) {
      count = next_piece(rows - i, kTileWidth);
      multiply_tile_at(first, i, count, 1, products);
    }
  }

  /// Rows i, i + distance .. of those that begin with `first`.
  void multiply_tile_at(int64_t first, int64_t i, int64_t count, int64_t distance, float* products) const {
    float* to = products + i * width_;
    for (int64_t j = 0; j < count && bias_ != nullptr; ++j) {
      std::fill_n(to + j * distance * width_, width_, bias_[first + i + j * distance]);
    }
    multiply_tile(count, width_, k_, left_ + (first + i) * stride_, distance * stride_, right_, width_, to,
                  distance * width_, /*adds=*/bias_ != nullptr);
  }

  const Bf16* left_;
  int64_t stride_;
  const Bf16* right_;
  int64_t width_;  ///< rows of x, rounded up to whole tiles
  Out* y_;
  const float* bias_;
  int64_t m_, n_, k_;
  int64_t streams_;  ///< rows of a tile
};

template <class Out>
void multiply_in_tiles(const at::Tensor& a, const at::Tensor& w, const float* bias, const at::Tensor& y) {
  const at::Tensor x = a.contiguous();
  const int64_t m = x.size(0), n = w.size(0), k = x.size(1), width = (m + kTileWidth - 1) / kTileWidth * kTileWidth;
  const at::Tensor pairs = at::empty({k / 2, width * 2}, x.options());
  const int64_t tasks = (n + kTileWidth - 1) / kTileWidth;
  const ThreadScratch scratch(tasks, ProductInTiles<Out>::scratch(width), x.options().dtype(at::kFloat));
  if (y.is_meta()) return;
  if (m < width) std::fill_n(data_of<Bf16>(pairs), pairs.numel(), Bf16{});
  kernels::transpose_pairs(data_of<Bf16>(x), k, m, k, data_of<Bf16>(pairs), width);
  const ProductInTiles<Out> product(w, pairs, width, bias, y);
  const int64_t grain = std::max<int64_t>(1, kLeastWork / (kTileWidth * k));
  parallel_for(0, tasks, grain, [&](int64_t begin, int64_t end) {
    product.run(begin * kTileWidth, std::min(end * kTileWidth, n), scratch.own<float>());
  });
}

}  // namespace

EachRowAlone::EachRowAlone(int64_t most)
    : before_(std::exchange(most_rows, most)), was_active_(std::exchange(is_each_alone, true)) {}
EachRowAlone::~EachRowAlone() {
  most_rows = before_;
  is_each_alone = was_active_;
}
bool EachRowAlone::is_active() noexcept { return is_each_alone; }

bool is_few_rows_product(const at::Tensor& a, const at::Tensor& b) {
  const at::ScalarType type = a.scalar_type();
  return a.size(0) <= most_rows && b.scalar_type() == type && !is_on_accelerator(a) && a.numel() > 0 && b.numel() > 0 &&
         (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf) && (b.stride(1) == 1 || b.size(1) == 1);
}

bool are_few_rows_in_tiles(const at::Tensor& a, const at::Tensor& b, Bf16Arithmetic bf16) {
  // Where bf16 has vectors alone, a tile of one row takes longer than its weight takes to read.
  static const bool has_amx = processor_class().ends_with("amx");
  return has_amx && bf16 == Bf16Arithmetic::native && a.scalar_type() == at::kBFloat16 && a.size(1) % 2 == 0 &&
         has_rows(b) && has_bf16_tiles();
}

at::Tensor few_rows_product(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias_in,
                            at::ScalarType type, Bf16Arithmetic bf16) {
  const int64_t m = a.size(0), n = b.size(0), k = a.size(1);
  const at::Tensor y = at::empty({m, n}, a.options().dtype(type));
  count_product(bias_in.has_value() ? "addmm" : "mm", a.scalar_type(), m, n, k);
  const KernelLogScope uncounted(nullptr);
  const at::Tensor bias = bias_in.has_value() ? bias_in->to(at::kFloat).contiguous() : at::Tensor();
  const float* added = bias.defined() && !y.is_meta() ? data_of<float>(bias) : nullptr;
  if (are_few_rows_in_tiles(a, b, bf16)) {
    if (type == at::kFloat) {
      multiply_in_tiles<float>(a, b, added, y);
    } else {
      multiply_in_tiles<Bf16>(a, b, added, y);
    }
    return y;
  }
  const at::Tensor x = packed_rows(a);
  if (y.is_meta()) return y;
  with_dtype("product", a.scalar_type(), [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, double>) {
      if (type == at::kFloat) return multiply<T, float>(x, b, added, y);
      multiply<T, T>(x, b, added, y);
    }
  });
  return y;
}

}  // namespace caravan
