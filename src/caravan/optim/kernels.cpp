#include "caravan/optim/kernels.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "caravan/base/simd.h"
#include "caravan/nn/kernel_math.h"

namespace caravan::kernels {
namespace {

/// As torch's fused kernel, operation by operation.
template <class T, bool kCopies>
struct AdamW {
  CARAVAN_INLINE void run(T* __restrict values, const T* __restrict gradients, T* __restrict exp_avg,
                          T* __restrict exp_avg_sq, Bf16* __restrict copies, int64_t count, const AdamWStep* step) {
    const T scale = static_cast<T>(step->gradient_scale);
    const T decay = static_cast<T>(step->decay);
    const T rest1 = static_cast<T>(1 - step->beta1);
    const T beta2 = static_cast<T>(step->beta2);
    const T rest2 = static_cast<T>(1 - step->beta2);
    const T epsilon = static_cast<T>(step->epsilon);
    const T step_size = static_cast<T>(step->step_size);
    const T root_correction = static_cast<T>(step->root_correction);
    for (int64_t i = 0; i < count; ++i) {
      const T gradient = gradients[i] * scale;
      const T m = exp_avg[i] + rest1 * (gradient - exp_avg[i]);
      const T v = exp_avg_sq[i] * beta2 + rest2 * gradient * gradient;
      const T value = values[i] * decay - step_size * m / (std::sqrt(v) / root_correction + epsilon);
      exp_avg[i] = m;
      exp_avg_sq[i] = v;
      values[i] = value;
      if constexpr (kCopies) store(static_cast<float>(value), copies[i]);
    }
  }
};

constexpr int64_t kLanes = 64;
constexpr int64_t kStretch = 4096;  ///< 64 squares in each lane

template <class T>
struct SumOfSquares {
  CARAVAN_INLINE void run(const T* __restrict x, int64_t count, double* sum) {
    std::array<T, kLanes> lanes{};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
    }
    for (; i < count; ++i) lanes[i % kLanes] += x[i] * x[i];
    for (const T lane : lanes) *sum += static_cast<double>(lane);
  }
};

}  // namespace

template <class T>
double sum_of_squares(const T* x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; i += kStretch) {
    simd::dispatch<SumOfSquares<T>>(x + i, std::min(kStretch, count - i), &sum);
  }
  return sum;
}

template double sum_of_squares(const float*, int64_t);
template double sum_of_squares(const double*, int64_t);

template <class T>
void adamw(T* values, const T* gradients, T* exp_avg, T* exp_avg_sq, Bf16* copies, int64_t count,
           const AdamWStep& step) {
  if (copies != nullptr) {
    simd::dispatch<AdamW<T, true>>(values, gradients, exp_avg, exp_avg_sq, copies, count, &step);
  } else {
    simd::dispatch<AdamW<T, false>>(values, gradients, exp_avg, exp_avg_sq, copies, count, &step);
  }
}

template void adamw(float*, const float*, float*, float*, Bf16*, int64_t, const AdamWStep&);
template void adamw(double*, const double*, double*, double*, Bf16*, int64_t, const AdamWStep&);

}  // namespace caravan::kernels
