#include "caravan/nn/product/few_rows.h"

#include <type_traits>

#include "caravan/base/numeric/simd.h"
#include "caravan/nn/product/row_math.h"

namespace caravan::kernels {
namespace {

constexpr int64_t kDepth = 512;  ///< of rows that stay in the first cache
constexpr int64_t kSumPitch = kWeightRows * kRowStep;
static_assert(few_rows_scratch(3) == 3 * kSumPitch + kWeightRows * kDepth);

/// The rows of a weight that are read at once are far apart: a processor fetches ahead for each of such streams, which
/// all stay in pages of their own, and reads half as much again as from one stream. Neighbours would share pages.
struct Streams {
  int64_t count = 0;  ///< rows of the weight
  int64_t length() const { return (count + kWeightRows - 1) / kWeightRows; }
  /// The `i`-th row of a stream; `count` or more where the last streams are shorter than the others.
  int64_t row(int64_t stream, int64_t i) const { return stream * length() + i; }
};

/// sums [kRows][kWeightRows] += the products of `count` elements, whole vectors, of kColumns rows of w and kRows of x.
template <class T, int kColumns, int kRows>
CARAVAN_INLINE void add_products(const T* const* w, const float* x, int64_t pitch, int64_t count, float* memory) {
  Row8 sums[kRows][kColumns], of_x[kRows], of_w;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) load_row(memory + r * kSumPitch + c * kRowStep, sums[r][c]);
  }
  for (int64_t i = 0; i < count; i += kRowStep) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) load_row(x + r * pitch + i, of_x[r]);
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
      load_row(w[c] + i, of_w);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) add_product(of_w, of_x[r], sums[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) store_row(sums[r][c], memory + r * kSumPitch + c * kRowStep);
  }
}

template <class T, class Out>
struct MultiplyFewRows {
  using Of = FewRows<T, Out>;

  CARAVAN_INLINE void run(const Of* given, int64_t first, int64_t end, float* sums) {
    const Of of = *given;
    float* widened = sums + of.rows * kSumPitch;
    const Streams streams{end - first};
    for (int64_t i = 0; i < streams.length(); ++i) {
      int64_t columns[kWeightRows];  // of y; -1: none
      const T* w[kWeightRows];
      for (int64_t c = 0; c < kWeightRows; ++c) {
        const int64_t row = streams.row(c, i);
        columns[c] = row < streams.count ? first + row : -1;
        w[c] = of.w + (first + (row < streams.count ? row : i)) * of.stride;
      }
      std::memset(sums, 0, static_cast<size_t>(of.rows * kSumPitch) * sizeof(float));
      const int64_t whole = of.k / kRowStep * kRowStep, depth = of.rows == 1 ? whole : kDepth;
      for (int64_t k = 0; k < whole; k += depth) {
        add_depth(of, w, k, whole - k < depth ? whole - k : depth, sums, widened);
      }
      if (whole < of.k) add_rest(of, w, whole, sums, widened);
      for (int64_t r = 0; r < of.rows; ++r) finish(of, r, columns, sums + r * kSumPitch);
    }
  }

  /// Elements [from, from + count) of k.
  CARAVAN_INLINE void add_depth(const Of& of, const T* const* w, int64_t from, int64_t count, float* sums,
                                float* widened) {
    const float* x = of.x + from;
    const T* at[kWeightRows];
    for (int64_t c = 0; c < kWeightRows; ++c) at[c] = w[c] + from;
    if (of.rows == 1) return add_products<T, kWeightRows, 1>(at, x, of.pitch, count, sums);
    if constexpr (std::is_same_v<T, float>) {
      add_rows(of, at, x, count, sums);
    } else {
      const float* wide[kWeightRows];
      for (int64_t c = 0; c < kWeightRows; ++c) {
        wide[c] = widened + c * kDepth;
        widen(at[c], count, widened + c * kDepth);
      }
      add_rows(of, wide, x, count, sums);
    }
  }

  CARAVAN_INLINE void widen(const T* from, int64_t count, float* to) {
    for (int64_t i = 0; i < count; i += kRowStep) {
      Row8 row;
      load_row(from + i, row);
      store_row(row, to + i);
    }
  }

  /// Two or more, as many at once as there are registers for.
  CARAVAN_INLINE void add_rows(const Of& of, const float* const* w, const float* x, int64_t count, float* sums) {
    constexpr int kColumns = 4;
    for (int64_t c = 0; c < kWeightRows; c += kColumns) {
      for (int64_t r = 0; r < of.rows;) {
        const int64_t left = of.rows - r;
        const float* rows = x + r * of.pitch;
        float* to = sums + r * kSumPitch + c * kRowStep;
        if (left == 3 || left > 4) {
          add_products<float, kColumns, 3>(w + c, rows, of.pitch, count, to);
          r += 3;
        } else if (left > 1) {
          add_products<float, kColumns, 2>(w + c, rows, of.pitch, count, to);
          r += 2;
        } else {
          add_products<float, kColumns, 1>(w + c, rows, of.pitch, count, to);
          r += 1;
        }
      }
    }
  }

  /// The elements beyond whole vectors.
  CARAVAN_INLINE void add_rest(const Of& of, const T* const* w, int64_t from, float* sums, float* widened) {
    const float* wide[kWeightRows];
    for (int64_t c = 0; c < kWeightRows; ++c) {
      wide[c] = widened + c * kRowStep;
      for (int64_t i = 0; i < kRowStep; ++i) {
        widened[c * kRowStep + i] = from + i < of.k ? load(w[c][from + i]) : 0;
      }
    }
    add_rows(of, wide, of.x + from, kRowStep, sums);
  }

  CARAVAN_INLINE void finish(const Of& of, int64_t r, const int64_t* columns, const float* sums) {
    Row8 lanes[kWeightRows];
    for (int64_t c = 0; c < kWeightRows; ++c) load_row(sums + c * kRowStep, lanes[c]);
    float y[kWeightRows];
    add_lanes(lanes, y);
    Out* to = of.y + r * of.y_pitch;
    for (int64_t c = 0; c < kWeightRows; ++c) {
      const int64_t column = columns[c];
      if (column >= 0) store(of.bias == nullptr ? y[c] : y[c] + of.bias[column], to[column]);
    }
  }
};

}  // namespace

template <class T, class Out>
void multiply_few_rows(const FewRows<T, Out>& of, int64_t first, int64_t end, float* scratch) {
  simd::dispatch<MultiplyFewRows<T, Out>>(&of, first, end, scratch);
}
template void multiply_few_rows(const FewRows<float, float>&, int64_t, int64_t, float*);
template void multiply_few_rows(const FewRows<Bf16, Bf16>&, int64_t, int64_t, float*);
template void multiply_few_rows(const FewRows<Bf16, float>&, int64_t, int64_t, float*);
template void multiply_few_rows(const FewRows<Fp16, Fp16>&, int64_t, int64_t, float*);
template void multiply_few_rows(const FewRows<Fp16, float>&, int64_t, int64_t, float*);

}  // namespace caravan::kernels
