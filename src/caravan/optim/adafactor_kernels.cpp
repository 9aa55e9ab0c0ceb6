#include "caravan/optim/adafactor_kernels.h"

#include <algorithm>
#include <cmath>

#include "caravan/base/numeric/simd.h"
#include "caravan/nn/product/kernel_math.h"

namespace caravan::kernels {
namespace {

template <class T, class G>
struct SquaresOfRows {
  CARAVAN_INLINE void run(const G* __restrict x, const MatrixBlock* block, double scale, T* __restrict sums) {
    for (int64_t i = 0; i < block->rows; ++i, x += block->stride) {
      const double sum = sum_of<T>(block->columns, [=](int64_t k) { return load(x[k]) * load(x[k]); });
      sums[i] += static_cast<T>(sum * scale);
    }
  }
};

/// A stretch of columns at a time: sums over few rows in T, then in fp64.
template <class T, class G>
struct SquaresOfColumns {
  CARAVAN_INLINE void run(const G* __restrict x, const MatrixBlock* block, double scale, T* __restrict sums) {
    constexpr int64_t kWidth = 64, kRows = 64;
    for (int64_t first = 0; first < block->columns; first += kWidth) {
      const int64_t width = block->columns - first < kWidth ? block->columns - first : kWidth;
      std::array<double, kWidth> totals{};
      for (int64_t begin = 0; begin < block->rows; begin += kRows) {
        const int64_t end = block->rows - begin < kRows ? block->rows : begin + kRows;
        std::array<T, kWidth> part{};
        for (int64_t i = begin; i < end; ++i) {
          const G* row = x + i * block->stride + first;
          for (int64_t k = 0; k < width; ++k) part[k] += load(row[k]) * load(row[k]);
        }
        for (int64_t k = 0; k < width; ++k) totals[k] += part[k];
      }
      for (int64_t k = 0; k < width; ++k) sums[first + k] += static_cast<T>(totals[k] * scale);
    }
  }
};

template <class T, class G>
struct SquaresOfUpdate {
  CARAVAN_INLINE void run(const G* __restrict x, const MatrixBlock* block, const T* __restrict rows,
                          const T* __restrict columns, double scale, double* __restrict sums) {
    for (int64_t i = 0; i < block->rows; ++i, x += block->stride) {
      const T row = rows[i] * static_cast<T>(scale);
      sums[i] = sum_of<T>(block->columns, [=](int64_t k) {
        const T update = load(x[k]) * row * columns[k];
        return update * update;
      });
    }
  }
};

template <class T, class G>
struct MoveSquares {
  CARAVAN_INLINE void run(const G* __restrict x, T* __restrict exp_avg_sq, int64_t count, double scale, double rest,
                          double epsilon, double* __restrict sum) {
    const T s = static_cast<T>(scale), kept = static_cast<T>(1 - rest), moved = static_cast<T>(rest);
    const T least = static_cast<T>(epsilon);
    for (int64_t i = 0; i < count; ++i) {
      const T gradient = load(x[i]) * s;
      exp_avg_sq[i] = exp_avg_sq[i] * kept + moved * (gradient * gradient + least);
    }
    *sum = sum_of<T>(count, [=](int64_t k) {
      const T update = load(x[k]) * s / std::sqrt(exp_avg_sq[k]);
      return update * update;
    });
  }
};

template <class T, class G, bool kIsFactored, bool kHasMomentum, bool kCopies>
struct Adafactor {
  CARAVAN_INLINE void run(T* __restrict values, const G* __restrict x, const UpdateFactors<T>* factors,
                          T* __restrict exp_avg, Bf16* __restrict copies, const MatrixBlock* block,
                          const AdafactorStep* step) {
    const T decay = static_cast<T>(step->decay);
    const T momentum = static_cast<T>(step->momentum);
    const T rest = static_cast<T>(1 - step->momentum);
    const T* __restrict columns = factors->columns;
    for (int64_t i = 0; i < block->rows; ++i) {
      const int64_t first = i * block->stride;
      T size = static_cast<T>(step->size);
      if constexpr (kIsFactored) size *= factors->rows[i];
      for (int64_t k = 0; k < block->columns; ++k) {
        T update = load(x[first + k]) * size;
        if constexpr (kIsFactored) {
          update *= columns[k];
        } else {
          update /= std::sqrt(factors->exp_avg_sq[first + k]);
        }
        if constexpr (kHasMomentum) {
          update = exp_avg[first + k] * momentum + rest * update;
          exp_avg[first + k] = update;
        }
        const T value = values[first + k] * decay - update;
        values[first + k] = value;
        if constexpr (kCopies) store(static_cast<float>(value), copies[first + k]);
      }
    }
  }
};

}  // namespace

template <class T, class G>
void add_squares_of_rows(const G* gradients, const MatrixBlock& block, double scale, T* sums) {
  simd::dispatch<SquaresOfRows<T, G>>(gradients, &block, scale, sums);
}

template <class T, class G>
void add_squares_of_columns(const G* gradients, const MatrixBlock& block, double scale, T* sums) {
  simd::dispatch<SquaresOfColumns<T, G>>(gradients, &block, scale, sums);
}

template <class T, class G>
void squares_of_update(const G* gradients, const MatrixBlock& block, const T* row_factors, const T* column_factors,
                       double scale, double* sums) {
  simd::dispatch<SquaresOfUpdate<T, G>>(gradients, &block, row_factors, column_factors, scale, sums);
}

template <class T, class G>
double move_squares(const G* gradients, T* exp_avg_sq, int64_t count, double scale, double rest, double epsilon) {
  double sum = 0;
  simd::dispatch<MoveSquares<T, G>>(gradients, exp_avg_sq, count, scale, rest, epsilon, &sum);
  return sum;
}

template <class T, class G>
void adafactor(T* values, const G* gradients, const UpdateFactors<T>& factors, T* exp_avg, Bf16* copies,
               const MatrixBlock& block, const AdafactorStep& step) {
  with_bool(factors.rows != nullptr, [&](auto is_factored) {
    with_bool(exp_avg != nullptr, [&](auto has_momentum) {
      with_bool(copies != nullptr, [&](auto has_copies) {
        simd::dispatch<Adafactor<T, G, is_factored, has_momentum, has_copies>>(values, gradients, &factors, exp_avg,
                                                                               copies, &block, &step);
      });
    });
  });
}

#define CARAVAN_ADAFACTOR_OF(T, G)                                                                    \
  template void add_squares_of_rows(const G*, const MatrixBlock&, double, T*);                        \
  template void add_squares_of_columns(const G*, const MatrixBlock&, double, T*);                     \
  template void squares_of_update(const G*, const MatrixBlock&, const T*, const T*, double, double*); \
  template double move_squares(const G*, T*, int64_t, double, double, double);                        \
  template void adafactor(T*, const G*, const UpdateFactors<T>&, T*, Bf16*, const MatrixBlock&, const AdafactorStep&)

CARAVAN_ADAFACTOR_OF(float, float);
CARAVAN_ADAFACTOR_OF(float, Bf16);
CARAVAN_ADAFACTOR_OF(double, double);

#undef CARAVAN_ADAFACTOR_OF

}  // namespace caravan::kernels
