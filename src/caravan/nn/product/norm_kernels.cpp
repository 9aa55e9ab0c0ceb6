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

/// Elements in the compute type, in `scratch` if they are not already: each is converted once.
template <class T>
CARAVAN_INLINE const Compute<T>* widened(const T* row, [[maybe_unused]] Compute<T>* scratch, int64_t width) {
  if constexpr (std::is_same_v<T, Compute<T>>) {
    return row;
  } else {
    for (int64_t i = 0; i < width; ++i) scratch[i] = load(row[i]);
    return scratch;
  }
}

/// Rows that a step of a norm takes at once: a processor then works on some while it waits for the divisions and roots
/// of others. Fewer where they would not stay in its first cache.
constexpr int64_t kMostAtOnce = 8;
constexpr int64_t rows_at_once(int64_t rows, int64_t width) {
  constexpr int64_t kElements = 4096;
  return std::min(rows, std::clamp<int64_t>(kElements / std::max<int64_t>(width, 1), 1, kMostAtOnce));
}

template <class T, bool kHasMean>
struct Norm {
  using C = Compute<T>;
  /// `scratch`: at_once + 2 rows.
  CARAVAN_INLINE void run(const NormRows<T>* all, C* scratch, int64_t rows, int64_t at_once, int64_t width,
                          double epsilon) {
    const C* weight = widened(all->weight, scratch + at_once * width, width);
    const C* bias = kHasMean ? widened(all->bias, scratch + (at_once + 1) * width, width) : nullptr;
    for (int64_t row = 0; row < rows; row += at_once) {
      const int64_t end = rows - row < at_once ? rows : row + at_once;
      const C* v = add_branches(*all, scratch, row, end, width);
      measure(*all, v, row, end, width, epsilon);
      for (int64_t at = row; at < end; ++at, v += width) {
        T* y = all->y + at * width;
        const C mean = kHasMean ? all->mean[at] : 0;
        const C r = all->rstd[at];
        for_each_lane(width, [=](int64_t i) {
          if constexpr (kHasMean) {
            store((v[i] - mean) * r * weight[i] + bias[i], y[i]);
          } else {
            store(v[i] * r * weight[i], y[i]);
          }
        });
      }
    }
  }

  /// Returns what is normalised, in the compute type.
  CARAVAN_INLINE const C* add_branches(const NormRows<T>& all, C* scratch, int64_t row, int64_t end, int64_t width) {
    const int64_t first = row * width, count = (end - row) * width;
    if (all.branch != nullptr) add_rows(all.x + first, all.branch + first, all.sum + first, count);
    return widened((all.branch != nullptr ? all.sum : all.x) + first, scratch, count);
  }

  CARAVAN_INLINE void measure(const NormRows<T>& all, const C* v, int64_t row, int64_t end, int64_t width,
                              double epsilon) {
    const auto count = static_cast<double>(width);
    if constexpr (kHasMean) {
      for (int64_t at = row; at < end; ++at) {
        const C* from = v + (at - row) * width;
        all.mean[at] = static_cast<C>(sum_of<C>(width, [=](int64_t i) { return from[i]; }) / count);
      }
    }
    double squares[kMostAtOnce];
    for (int64_t at = row; at < end; ++at) {
      const C* from = v + (at - row) * width;
      const C mean = kHasMean ? all.mean[at] : 0;
      squares[at - row] = sum_of<C>(width, [=](int64_t i) { return (from[i] - mean) * (from[i] - mean); });
    }
    for (int64_t at = row; at < end; ++at) {
      all.rstd[at] = static_cast<C>(1 / __builtin_sqrt(squares[at - row] / count + epsilon));
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
  const int64_t at_once = rows_at_once(rows, width);
  std::vector<Compute<T>> scratch = scratch_of<T>(at_once + 2, width);
  if (all.bias != nullptr) {
    simd::dispatch<Norm<T, true>>(&all, scratch.data(), rows, at_once, width, epsilon);
  } else {
    simd::dispatch<Norm<T, false>>(&all, scratch.data(), rows, at_once, width, epsilon);
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
