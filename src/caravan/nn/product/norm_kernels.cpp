#include "caravan/nn/product/norm_kernels.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "caravan/base/numeric/simd.h"
#include "caravan/nn/product/kernel_math.h"

namespace caravan::kernels {
namespace {

template <class T>
CARAVAN_INLINE void add_rows(const T* a, const T* b, T* sum, int64_t width) {
#pragma GCC ivdep
  for (int64_t i = 0; i < width; ++i) store(load(a[i]) + load(b[i]), sum[i]);
}

/// The row in the compute type, in `scratch` if it is not already: each element is converted once.
template <class T>
CARAVAN_INLINE const Compute<T>* widened(const T* row, [[maybe_unused]] Compute<T>* scratch, int64_t width) {
  if constexpr (std::is_same_v<T, Compute<T>>) {
    return row;
  } else {
    for (int64_t i = 0; i < width; ++i) scratch[i] = load(row[i]);
    return scratch;
  }
}

template <class T, bool kHasMean>
struct Norm {
  using C = Compute<T>;
  /// `scratch`: 3 rows.
  CARAVAN_INLINE void run(const NormRows<T>* all, C* scratch, int64_t rows, int64_t width, double epsilon) {
    const auto count = static_cast<double>(width);
    const C* weight = widened(all->weight, scratch + width, width);
    const C* bias = kHasMean ? widened(all->bias, scratch + 2 * width, width) : nullptr;
    for (int64_t row = 0; row < rows; ++row) {
      const T* from = all->x + row * width;
      if (all->branch != nullptr) {
        add_rows(from, all->branch + row * width, all->sum + row * width, width);
        from = all->sum + row * width;
      }
      const C* v = widened(from, scratch, width);
      C mean = 0;
      if constexpr (kHasMean) {
        mean = static_cast<C>(sum_of<C>(width, [=](int64_t i) { return v[i]; }) / count);
        all->mean[row] = mean;
      }
      const double squares = sum_of<C>(width, [=](int64_t i) { return (v[i] - mean) * (v[i] - mean); });
      const C r = static_cast<C>(1 / __builtin_sqrt(squares / count + epsilon));
      all->rstd[row] = r;
      T* y = all->y + row * width;
#pragma GCC ivdep
      for (int64_t i = 0; i < width; ++i) {
        if constexpr (kHasMean) {
          store((v[i] - mean) * r * weight[i] + bias[i], y[i]);
        } else {
          store(v[i] * r * weight[i], y[i]);
        }
      }
    }
  }
};

template <class T, bool kHasMean>
struct NormBackward {
  using C = Compute<T>;
  /// Rows [first, first + rows). `totals`: zeros, [width] or [2, width]. `scratch`: 3 rows.
  CARAVAN_INLINE void run(const NormGradient<T>* all, C* totals, C* scratch, int64_t first, int64_t rows,
                          int64_t width) {
    const auto count = static_cast<double>(width);
    const C* weight = widened(all->weight, scratch + 2 * width, width);
    C* dbias = totals + width;
    for (int64_t row = first; row < first + rows; ++row) {
      const C* v = widened(all->v + row * width, scratch, width);
      const C* dy = widened(all->dy + row * width, scratch + width, width);
      T* dv = all->dv + row * width;
      const C r = all->rstd[row];
      const C mean = kHasMean ? all->mean[row] : 0;
      const double along = sum_of<C>(width, [=](int64_t i) { return dy[i] * weight[i] * (v[i] - mean); });
      C level = 0;
      if constexpr (kHasMean) {
        level = static_cast<C>(sum_of<C>(width, [=](int64_t i) { return dy[i] * weight[i]; }) / count);
      }
      const C back = static_cast<C>(along / count) * r * r;
#pragma GCC ivdep
      for (int64_t i = 0; i < width; ++i) {
        const C centred = v[i] - mean;
        const C d = dy[i];
        totals[i] += d * centred * r;
        if constexpr (kHasMean) dbias[i] += d;
        store(r * (d * weight[i] - level - centred * back), dv[i]);
      }
      if (all->dsum != nullptr) add_rows(dv, all->dsum + row * width, dv, width);
    }
  }
};

template <class T>
std::vector<Compute<T>> scratch_of(int64_t rows, int64_t width) {
  return std::vector<Compute<T>>(static_cast<size_t>(std::is_same_v<T, Compute<T>> ? 0 : rows * width));
}

}  // namespace

template <class T>
void norm(const NormRows<T>& all, int64_t rows, int64_t width, double epsilon) {
  std::vector<Compute<T>> scratch = scratch_of<T>(3, width);
  if (all.bias != nullptr) {
    simd::dispatch<Norm<T, true>>(&all, scratch.data(), rows, width, epsilon);
  } else {
    simd::dispatch<Norm<T, false>>(&all, scratch.data(), rows, width, epsilon);
  }
}

template <class T>
void norm_backward(const NormGradient<T>& all, double* totals, int64_t rows, int64_t width) {
  constexpr int64_t kStretch = 64;  // rows whose gradients of the parameters are summed in the compute type
  const bool has_mean = all.mean != nullptr;
  std::vector<Compute<T>> scratch = scratch_of<T>(3, width);
  std::vector<Compute<T>> partial(static_cast<size_t>(has_mean ? 2 * width : width));
  for (int64_t row = 0; row < rows; row += kStretch) {
    std::fill(partial.begin(), partial.end(), 0);
    const int64_t some = std::min(kStretch, rows - row);
    if (has_mean) {
      simd::dispatch<NormBackward<T, true>>(&all, partial.data(), scratch.data(), row, some, width);
    } else {
      simd::dispatch<NormBackward<T, false>>(&all, partial.data(), scratch.data(), row, some, width);
    }
    for (size_t i = 0; i < partial.size(); ++i) totals[i] += partial[i];
  }
}

#define CARAVAN_INSTANTIATE(T)                                      \
  template void norm(const NormRows<T>&, int64_t, int64_t, double); \
  template void norm_backward(const NormGradient<T>&, double*, int64_t, int64_t);
CARAVAN_INSTANTIATE(float)
CARAVAN_INSTANTIATE(double)
CARAVAN_INSTANTIATE(Bf16)
CARAVAN_INSTANTIATE(Fp16)

}  // namespace caravan::kernels
