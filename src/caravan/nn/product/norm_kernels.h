#pragma once

#include <cstdint>

#include "caravan/nn/product/kernels.h"

/// Norms of rows of `width` elements, on plain memory; T and threads as in kernels.h. Rows stay in the cache between
/// the loops over them.
namespace caravan::kernels {

/// y = (v - mean) r weight + bias with r = 1 / sqrt(variance of v + epsilon), of v = x + branch. Null pointers:
/// `branch`: v is x, and `sum` is not written; `bias`: there is no bias and the mean is taken as 0 (RMSNorm).
template <class T>
struct NormRows {
  const T* x;
  const T* branch;
  const T* weight;
  const T* bias;
  T* sum;  ///< v, rounded before it is normalised
  T* y;
  Compute<T>* mean;  ///< one a row; not written without a bias
  Compute<T>* rstd;
};
template <class T>
void norm(const NormRows<T>& all, int64_t rows, int64_t width, double epsilon);

/// Backward, of v; without a `mean` there is no bias.
template <class T>
struct NormGradient {
  const T* dy;
  const T* v;
  const T* weight;
  const Compute<T>* mean;
  const Compute<T>* rstd;
  const T* dsum;  ///< null: 0
  T* dv;          ///< the gradient through the norm, rounded, plus dsum
};
/// Adds the gradient of the weight, and after it that of the bias, to `totals`, [width] or [2, width].
template <class T>
void norm_backward(const NormGradient<T>& all, double* totals, int64_t rows, int64_t width);

}  // namespace caravan::kernels
