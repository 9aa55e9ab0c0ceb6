#include "caravan/nn/product/few_rows.h"

#include <type_traits>

#include "caravan/base/numeric/simd.h"
#include "caravan/nn/product/row_math.h"

namespace caravan::kernels {
namespace {

constexpr int64_t kDepth = 512;  ///< of rows that stay in the first cache
constexpr int64_t kSumPitch = kWeightRows * kRowStep;
static_assert(few_rows_scratch(3) == 3 * kSumPitch + kWeightRows * kDepth);

/// Elements from a row of the weight to the one that is fetched into the second cache meanwhile. Several rows are read
/// at once: that is more than a processor foresees.
template <class T>
constexpr int64_t ahead_of(int64_t stride) {
  constexpr int64_t kLongRow = 16 * 1024 / sizeof(T);
  return (stride > kLongRow ? 1 : 2) * kWeightRows * stride;
}

/// Which lines of the rows ahead are fetched meanwhile: every `step`-th, from `first` on.
struct Fetches {
  int64_t ahead = 0;  ///< elements; 0: none
  int64_t first = 0, step = 1;
};

/// sums [kRows][kWeightRows] += the products of `count` elements, whole vectors, of kColumns rows of w and kRows of x.
template <class T, int kColumns, int kRows>
CARAVAN_INLINE void add_products(const T* const* w, const float* x, int64_t pitch, int64_t count,
                                 const Fetches& fetches, float* memory) {
  constexpr int64_t kOfLine = 64 / static_cast<int64_t>(sizeof(T));
  Row8 sums[kRows][kColumns], of_x[kRows], of_w;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) load_row(memory + r * kSumPitch + c * kRowStep, sums[r][c]);
  }
  int64_t fetched = fetches.ahead > 0 ? fetches.first * kOfLine : count;
  for (int64_t line = 0; line < count; line += kOfLine) {
    if (line == fetched) {
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) __builtin_prefetch(w[c] + line + fetches.ahead, /*rw=*/0, /*locality=*/2);
      fetched += fetches.step * kOfLine;
    }
    const int64_t end = count - line < kOfLine ? count : line + kOfLine;
    for (int64_t i = line; i < end; i += kRowStep) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) load_row(x + r * pitch + i, of_x[r]);
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) {
        load_row(w[c] + i, of_w);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) add_product(of_w, of_x[r], sums[r][c]);
      }
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
    for (int64_t column = first; column < end; column += kWeightRows) {
      const int64_t columns = end - column < kWeightRows ? end - column : kWeightRows;
      const T* w[kWeightRows];
      for (int64_t c = 0; c < kWeightRows; ++c) w[c] = of.w + (column + (c < columns ? c : 0)) * of.stride;
      std::memset(sums, 0, static_cast<size_t>(of.rows * kSumPitch) * sizeof(float));
      const int64_t whole = of.k / kRowStep * kRowStep, depth = of.rows == 1 ? whole : kDepth;
      for (int64_t k = 0; k < whole; k += depth) {
        add_depth(of, w, k, whole - k < depth ? whole - k : depth, sums, widened);
      }
      if (whole < of.k) add_rest(of, w, whole, sums, widened);
      for (int64_t r = 0; r < of.rows; ++r) finish(of, r, column, columns, sums + r * kSumPitch);
    }
  }

  /// Elements [from, from + count) of k.
  CARAVAN_INLINE void add_depth(const Of& of, const T* const* w, int64_t from, int64_t count, float* sums,
                                float* widened) {
    const float* x = of.x + from;
    const int64_t ahead = ahead_of<T>(of.stride);
    const T* at[kWeightRows];
    for (int64_t c = 0; c < kWeightRows; ++c) at[c] = w[c] + from;
    if (of.rows == 1) return add_products<T, kWeightRows, 1>(at, x, of.pitch, count, {ahead}, sums);
    if constexpr (std::is_same_v<T, float>) {
      add_rows(of, at, x, count, ahead, sums);
    } else {
      const float* wide[kWeightRows];
      for (int64_t c = 0; c < kWeightRows; ++c) {
        wide[c] = widened + c * kDepth;
        widen(at[c], count, ahead, widened + c * kDepth);
      }
      add_rows(of, wide, x, count, 0, sums);
    }
  }

  CARAVAN_INLINE void widen(const T* from, int64_t count, int64_t ahead, float* to) {
    constexpr int64_t kOfLine = 64 / static_cast<int64_t>(sizeof(T));
    for (int64_t i = 0; i < count; i += kOfLine) __builtin_prefetch(from + ahead + i, /*rw=*/0, /*locality=*/2);
    for (int64_t i = 0; i < count; i += kRowStep) {
      Row8 row;
      load_row(from + i, row);
      store_row(row, to + i);
    }
  }

  /// Two or more, as many at once as there are registers for.
  CARAVAN_INLINE void add_rows(const Of& of, const float* const* w, const float* x, int64_t count, int64_t ahead,
                               float* sums) {
    constexpr int kColumns = 4;
    // Together all passes fetch each line once: more at a time would wait for each other.
    const int64_t passes = (of.rows + 2) / 3;
    for (int64_t c = 0; c < kWeightRows; c += kColumns) {
      int64_t pass = 0;
      for (int64_t r = 0; r < of.rows;) {
        const int64_t left = of.rows - r;
        const Fetches fetched{ahead, pass++, passes};
        const float* rows = x + r * of.pitch;
        float* to = sums + r * kSumPitch + c * kRowStep;
        if (left == 3 || left > 4) {
          add_products<float, kColumns, 3>(w + c, rows, of.pitch, count, fetched, to);
          r += 3;
        } else if (left > 1) {
          add_products<float, kColumns, 2>(w + c, rows, of.pitch, count, fetched, to);
          r += 2;
        } else {
          add_products<float, kColumns, 1>(w + c, rows, of.pitch, count, fetched, to);
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
    add_rows(of, wide, of.x + from, kRowStep, 0, sums);
  }

  CARAVAN_INLINE void finish(const Of& of, int64_t r, int64_t column, int64_t columns, const float* sums) {
    Row8 lanes[kWeightRows];
    for (int64_t c = 0; c < kWeightRows; ++c) load_row(sums + c * kRowStep, lanes[c]);
    float y[kWeightRows];
    add_lanes(lanes, y);
    Out* to = of.y + r * of.y_pitch + column;
    for (int64_t c = 0; c < columns; ++c) store(of.bias == nullptr ? y[c] : y[c] + of.bias[column + c], to[c]);
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
