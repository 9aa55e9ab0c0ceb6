#include "caravan/optim/kernels.h"

#include <cmath>

#include "caravan/base/numeric/simd.h"
#include "caravan/nn/product/kernel_math.h"

namespace caravan::kernels {
namespace {

/// The same operations as torch's fused kernel.
template <class T, class G, bool kCopies>
struct AdamW {
  CARAVAN_INLINE void run(T* __restrict values, const G* __restrict gradients, T* __restrict exp_avg,
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
      const T gradient = load(gradients[i]) * scale;
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

template <class T, class G, bool kHasMomentum>
struct Sgd {
  CARAVAN_INLINE void run(T* __restrict values, const G* __restrict gradients, T* __restrict momentum, int64_t count,
                          const SgdStep* step) {
    const T scale = static_cast<T>(step->gradient_scale);
    const T decay = static_cast<T>(step->weight_decay);
    const T rate = static_cast<T>(step->momentum);
    const T lr = static_cast<T>(step->lr);
    for (int64_t i = 0; i < count; ++i) {
      T direction = load(gradients[i]) * scale + decay * values[i];
      if constexpr (kHasMomentum) momentum[i] = direction = momentum[i] * rate + direction;
      values[i] -= lr * direction;
    }
  }
};

template <class T, class G, bool kCopies>
struct Lion {
  CARAVAN_INLINE void run(T* __restrict values, const G* __restrict gradients, T* __restrict exp_avg,
                          Bf16* __restrict copies, int64_t count, const LionStep* step) {
    const T scale = static_cast<T>(step->gradient_scale);
    const T decay = static_cast<T>(step->decay);
    const T rest1 = static_cast<T>(1 - step->beta1);
    const T rest2 = static_cast<T>(1 - step->beta2);
    const T lr = static_cast<T>(step->lr);
    for (int64_t i = 0; i < count; ++i) {
      const T m = exp_avg[i];
      const T change = load(gradients[i]) * scale - m;
      const T direction = m + rest1 * change;
      const T sign = static_cast<T>(direction > 0) - static_cast<T>(direction < 0);
      const T value = values[i] * decay - lr * sign;
      exp_avg[i] = m + rest2 * change;
      values[i] = value;
      if constexpr (kCopies) store(static_cast<float>(value), copies[i]);
    }
  }
};

template <class T>
struct SumsOfSquares {
  CARAVAN_INLINE void run(const T* __restrict x, int64_t rows, int64_t row, double* __restrict sums) {
    for (int64_t i = 0; i < rows; ++i, x += row) {
      sums[i] = sum_of<Compute<T>>(row, [=](int64_t k) { return load(x[k]) * load(x[k]); });
    }
  }
};

}  // namespace

template <class T>
void sums_of_squares(const T* x, int64_t rows, int64_t row, double* sums) {
  simd::dispatch<SumsOfSquares<T>>(x, rows, row, sums);
}

template void sums_of_squares(const float*, int64_t, int64_t, double*);
template void sums_of_squares(const double*, int64_t, int64_t, double*);
template void sums_of_squares(const Bf16*, int64_t, int64_t, double*);

template <class T, class G>
void adamw(T* values, const G* gradients, T* exp_avg, T* exp_avg_sq, Bf16* copies, int64_t count,
           const AdamWStep& step) {
  if (copies != nullptr) {
    simd::dispatch<AdamW<T, G, true>>(values, gradients, exp_avg, exp_avg_sq, copies, count, &step);
  } else {
    simd::dispatch<AdamW<T, G, false>>(values, gradients, exp_avg, exp_avg_sq, copies, count, &step);
  }
}

template <class T, class G>
void sgd(T* values, const G* gradients, T* momentum, int64_t count, const SgdStep& step) {
  if (momentum != nullptr) {
    simd::dispatch<Sgd<T, G, true>>(values, gradients, momentum, count, &step);
  } else {
    simd::dispatch<Sgd<T, G, false>>(values, gradients, momentum, count, &step);
  }
}

template <class T, class G>
void lion(T* values, const G* gradients, T* exp_avg, Bf16* copies, int64_t count, const LionStep& step) {
  if (copies != nullptr) {
    simd::dispatch<Lion<T, G, true>>(values, gradients, exp_avg, copies, count, &step);
  } else {
    simd::dispatch<Lion<T, G, false>>(values, gradients, exp_avg, copies, count, &step);
  }
}

template void lion(float*, const float*, float*, Bf16*, int64_t, const LionStep&);
template void lion(float*, const Bf16*, float*, Bf16*, int64_t, const LionStep&);
template void lion(double*, const double*, double*, Bf16*, int64_t, const LionStep&);

template void sgd(float*, const float*, float*, int64_t, const SgdStep&);
template void sgd(float*, const Bf16*, float*, int64_t, const SgdStep&);
template void sgd(double*, const double*, double*, int64_t, const SgdStep&);

template void adamw(float*, const float*, float*, float*, Bf16*, int64_t, const AdamWStep&);
template void adamw(float*, const Bf16*, float*, float*, Bf16*, int64_t, const AdamWStep&);
template void adamw(double*, const double*, double*, double*, Bf16*, int64_t, const AdamWStep&);

}  // namespace caravan::kernels
