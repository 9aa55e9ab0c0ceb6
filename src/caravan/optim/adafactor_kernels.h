#pragma once

#include <cstdint>

#include "caravan/nn/product/kernels.h"

namespace caravan::kernels {

// Of Adafactor. T is float or double, of values and state; G, of gradients, is T, or Bf16. Single-threaded; the same
// bits on every machine.

/// Rows of a matrix in memory, `stride` elements apart.
struct MatrixBlock {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
};

/// Adds the sum of squares of each row, times `scale`, to sums[0 .. rows).
template <class T, class G>
void add_squares_of_rows(const G* gradients, const MatrixBlock& block, double scale, T* sums);

/// The same of each column: sums[0 .. columns).
template <class T, class G>
void add_squares_of_columns(const G* gradients, const MatrixBlock& block, double scale, T* sums);

/// The sum of squares of each row of an update: gradients times scale, and the factors of their row and column.
template <class T, class G>
void squares_of_update(const G* gradients, const MatrixBlock& block, const T* row_factors, const T* column_factors,
                       double scale, double* sums);

/// Moves second moments of single elements by `rest` towards gradient² + epsilon. Returns the sum of squares of the
/// update: gradients over the roots of the new moments.
template <class T, class G>
double move_squares(const G* gradients, T* exp_avg_sq, int64_t count, double scale, double rest, double epsilon);

/// The numbers of one step.
struct AdafactorStep {
  double size = 1;      ///< factor of the update: of clipping, and the learning rate
  double decay = 1;     ///< 1 - lr * weight decay
  double momentum = 0;  ///< without it, no average of updates is kept
};

/// What an update multiplies gradients by.
template <class T>
struct UpdateFactors {
  const T* rows = nullptr;        ///< null: `exp_avg_sq` has the second moments of single elements
  const T* columns = nullptr;     ///< of the block
  const T* exp_avg_sq = nullptr;  ///< of `stride` as the gradients
};

/// One sweep over a block of values with their gradients: writes the values; their average of updates, if `exp_avg` is
/// not null; and with `copies`, the new values rounded to bf16.
template <class T, class G>
void adafactor(T* values, const G* gradients, const UpdateFactors<T>& factors, T* exp_avg, Bf16* copies,
               const MatrixBlock& block, const AdafactorStep& step);

}  // namespace caravan::kernels
