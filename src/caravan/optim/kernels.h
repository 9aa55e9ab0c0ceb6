#pragma once

#include <cstdint>

#include "caravan/nn/product/kernels.h"

namespace caravan::kernels {

/// The numbers of one AdamW step, the same for every element.
struct AdamWStep {
  double gradient_scale = 1;  ///< for clipping
  double decay = 1;           ///< 1 - lr * weight decay
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  double step_size = 0;        ///< lr / (1 - beta1^t)
  double root_correction = 1;  ///< sqrt(1 - beta2^t)
};

/// One sweep over `count` elements: reads gradients; updates values and both moments; with `copies`, also writes the
/// new values rounded to bf16. T is float or double; G is T, or Bf16. Single-threaded; the same bits on every machine.
template <class T, class G>
void adamw(T* values, const G* gradients, T* exp_avg, T* exp_avg_sq, Bf16* copies, int64_t count,
           const AdamWStep& step);

/// The numbers of one SGD step.
struct SgdStep {
  double gradient_scale = 1;
  double weight_decay = 0;  ///< 0 for parameters that do not decay
  double momentum = 0;
  double lr = 0;
};

/// One sweep over `count` elements: reads gradients; updates values, and their momentum if that is not null. T is float
/// or double; G is T, or Bf16. Single-threaded; the same bits on every machine.
template <class T, class G>
void sgd(T* values, const G* gradients, T* momentum, int64_t count, const SgdStep& step);

/// The numbers of one step of Lion.
struct LionStep {
  double gradient_scale = 1;
  double decay = 1;  ///< 1 - lr * weight decay
  double beta1 = 0;
  double beta2 = 0;
  double lr = 0;
};

/// One sweep over `count` elements: reads gradients; updates values and their moment; with `copies`, also writes the
/// new values rounded to bf16. T is float or double; G is T, or Bf16. Single-threaded; the same bits on every machine.
template <class T, class G>
void lion(T* values, const G* gradients, T* exp_avg, Bf16* copies, int64_t count, const LionStep& step);

/// The sum of squares of each of `rows` rows of `row` numbers: in the compute type over short stretches, then in
/// fp64. T is float, double or Bf16. The same bits on every machine.
template <class T>
void sums_of_squares(const T* x, int64_t rows, int64_t row, double* sums);

}  // namespace caravan::kernels
