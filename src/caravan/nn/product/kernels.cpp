#include "caravan/nn/product/kernels.h"

#include <array>

#include "caravan/base/numeric/simd.h"
#include "caravan/nn/product/kernel_math.h"

namespace caravan::kernels {
namespace {

template <class T, bool kKeepsSlope>
struct Gelu {
  using C = Compute<T>;
  static constexpr C kSlope = static_cast<C>(2 * 0.79788456080286535588);  // 2 sqrt(2/pi)
  static constexpr C kCubic = static_cast<C>(0.044715);
  static constexpr C kFar = 10;  // beyond it s is 1, or below 1e-37, beside which larger powers of x would overflow

  CARAVAN_INLINE void run(const T* x, T* y, T* slope, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      C v = load(x[i]);
      v = v < -kFar ? -kFar : v;
      const C near = v > kFar ? kFar : v;
      const C cubic = kCubic * near;
      const C s = sigmoid(kSlope * near * fused(cubic, near, 1));
      store(v * s, y[i]);
      if constexpr (kKeepsSlope) store(fused(near * s * (1 - s) * kSlope, fused(3 * cubic, near, 1), s), slope[i]);
    }
  }
};

template <class T>
struct GeluBackward {
  CARAVAN_INLINE void run(const T* dy, const T* slope, T* dx, int64_t count) {
    for (int64_t i = 0; i < count; ++i) store(load(dy[i]) * load(slope[i]), dx[i]);
  }
};

/// The argument of x sigmoid(x). Far below 0, sigmoid() is about 1e-38, beside which x must not grow.
template <class C>
CARAVAN_INLINE C gate_of(C x) {
  constexpr C kFar = -100;
  return x < kFar ? kFar : x;
}

template <class T>
struct Swiglu {
  CARAVAN_INLINE void run(const T* gate, const T* up, T* y, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const auto g = gate_of(load(gate[i]));
      store(g * sigmoid(g) * load(up[i]), y[i]);
    }
  }
};

template <class T>
struct SwigluBackward {
  CARAVAN_INLINE void run(const T* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const auto g = gate_of(load(gate[i]));
      const auto d = load(dy[i]);
      const auto s = sigmoid(g);
      store(d * load(up[i]) * s * (1 + g * (1 - s)), dgate[i]);
      store(d * g * s, dup[i]);
    }
  }
};

template <class T>
struct Multiply {
  CARAVAN_INLINE void run(const T* x, const float* mask, T* y, int64_t count) {
    for (int64_t i = 0; i < count; ++i) store(load(x[i]) * static_cast<Compute<T>>(mask[i]), y[i]);
  }
};

template <class T>
struct Accumulate {
  CARAVAN_INLINE void run(const T* x, Compute<T>* sum, int64_t count) {
    for (int64_t i = 0; i < count; ++i) sum[i] += load(x[i]);
  }
};

template <class T>
struct SumRows {
  CARAVAN_INLINE void run(const T* x, int64_t stride, int64_t rows, int64_t width, float* sum) {
    constexpr int64_t kRows = 128;  // that one sum adds up
    for (int64_t i = 0; i < width; i += kSumColumns) {
      std::array<float, kSumColumns> part;
      const int64_t count = width - i < kSumColumns ? width - i : kSumColumns;
      for (int64_t first = 0; first < rows; first += kRows) {
        const int64_t end = rows - first < kRows ? rows : first + kRows;
        part.fill(0);
        for (int64_t row = first; row < end; ++row) {
          const T* at = x + row * stride + i;
          if (count == kSumColumns) {
            for (int64_t k = 0; k < kSumColumns; ++k) part[k] += load(at[k]);
          } else {
            for (int64_t k = 0; k < count; ++k) part[k] += load(at[k]);
          }
        }
        for (int64_t k = 0; k < count; ++k) sum[i + k] += part[k];
      }
    }
  }
};

template <class T>
struct Rotate {
  using C = Compute<T>;
  CARAVAN_INLINE void run(const T* x, const C* cosine, const C* sine, T* y, int64_t heads, int64_t half, int64_t width,
                          C sign) {
    for (int64_t head = 0; head < heads; ++head, x += width, y += width) {
      for (int64_t i = 0; i < half; ++i) {
        const C a = load(x[i]);
        const C b = load(x[i + half]);
        const C s = sign * sine[i];
        store(a * cosine[i] - b * s, y[i]);
        store(b * cosine[i] + a * s, y[i + half]);
      }
      for (int64_t i = 2 * half; i < width; ++i) y[i] = x[i];
    }
  }
};

constexpr int64_t kStretch = 1024;

template <class T>
struct RowMax {
  using C = Compute<T>;
  CARAVAN_INLINE void run(const T* row, int64_t count, double* largest) {
    if constexpr (sizeof(T) == sizeof(C)) {
      *largest = max_of(row, count);
    } else {
      std::array<C, kStretch> stretch;
      C most = -INFINITY;
      for (int64_t first = 0; first < count; first += kStretch) {
        const int64_t length = count - first < kStretch ? count - first : kStretch;
        for (int64_t i = 0; i < length; ++i) stretch[i] = load(row[first + i]);
        const C here = max_of(stretch.data(), length);
        most = here > most ? here : most;
      }
      *largest = most;
    }
  }
};

template <class T>
struct RowExponentials {
  using C = Compute<T>;
  CARAVAN_INLINE void run(T* row, int64_t count, double shift, bool keep, double* sum) {
    const C largest = static_cast<C>(shift);
    std::array<C, kStretch> stretch;
    *sum = 0;
    for (int64_t first = 0; first < count; first += kStretch) {
      const int64_t length = count - first < kStretch ? count - first : kStretch;
      C* exponentials = stretch.data();
      if constexpr (sizeof(T) == sizeof(C)) exponentials = keep ? row + first : exponentials;
      for (int64_t i = 0; i < length; ++i) exponentials[i] = exponential(load(row[first + i]) - largest);
      *sum += sum_of<C>(length, [=](int64_t i) { return exponentials[i]; });
    }
  }
};

template <class T>
struct RowSoftmax {
  using C = Compute<T>;
  CARAVAN_INLINE void run(T* row, int64_t count, double shift, double times) {
    const C factor = static_cast<C>(times);
    if constexpr (sizeof(T) == sizeof(C)) {
      for (int64_t v = 0; v < count; ++v) row[v] *= factor;
    } else {
      const C largest = static_cast<C>(shift);
      for (int64_t v = 0; v < count; ++v) store(exponential(load(row[v]) - largest) * factor, row[v]);
    }
  }
};

}  // namespace

template <class T>
void gelu(const T* x, T* y, T* slope, int64_t count) {
  with_bool(slope != nullptr,
            [&](auto keeps_slope) { simd::dispatch<Gelu<T, keeps_slope.value>>(x, y, slope, count); });
}
template <class T>
void gelu_backward(const T* dy, const T* slope, T* dx, int64_t count) {
  simd::dispatch<GeluBackward<T>>(dy, slope, dx, count);
}
template <class T>
void swiglu(const T* gate, const T* up, T* y, int64_t count) {
  simd::dispatch<Swiglu<T>>(gate, up, y, count);
}
template <class T>
void swiglu_backward(const T* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t count) {
  simd::dispatch<SwigluBackward<T>>(dy, gate, up, dgate, dup, count);
}
template <class T>
void multiply(const T* x, const float* mask, T* y, int64_t count) {
  simd::dispatch<Multiply<T>>(x, mask, y, count);
}
template <class T>
void accumulate(const T* x, Compute<T>* sum, int64_t count) {
  simd::dispatch<Accumulate<T>>(x, sum, count);
}
template <class T>
void add_sum_of_rows(const T* x, int64_t stride, int64_t rows, int64_t width, float* sum) {
  simd::dispatch<SumRows<T>>(x, stride, rows, width, sum);
}
template void add_sum_of_rows(const float*, int64_t, int64_t, int64_t, float*);
template void add_sum_of_rows(const Bf16*, int64_t, int64_t, int64_t, float*);
template void add_sum_of_rows(const Fp16*, int64_t, int64_t, int64_t, float*);

template <class T>
void rotate(const T* x, const Compute<T>* cosine, const Compute<T>* sine, T* y, int64_t heads, int64_t half,
            int64_t width, Compute<T> sign) {
  simd::dispatch<Rotate<T>>(x, cosine, sine, y, heads, half, width, sign);
}
template <class T>
double row_max(const T* row, int64_t count) {
  double largest = -INFINITY;
  if (count > 0) simd::dispatch<RowMax<T>>(row, count, &largest);
  return largest;
}
template <class T>
double row_exponentials(T* row, int64_t count, double largest, bool keep) {
  double sum = 0;
  simd::dispatch<RowExponentials<T>>(row, count, largest, keep, &sum);
  return sum;
}
template <class T>
void row_softmax(T* row, int64_t count, double largest, double factor) {
  simd::dispatch<RowSoftmax<T>>(row, count, largest, factor);
}
template <class T>
double element(const T* row, int64_t index) {
  return load(row[index]);
}
template <class T>
void set_element(T* row, int64_t index, double value) {
  store(static_cast<Compute<T>>(value), row[index]);
}

#define CARAVAN_INSTANTIATE(T)                                                                                     \
  template void gelu(const T*, T*, T*, int64_t);                                                                   \
  template void gelu_backward(const T*, const T*, T*, int64_t);                                                    \
  template void swiglu(const T*, const T*, T*, int64_t);                                                           \
  template void swiglu_backward(const T*, const T*, const T*, T*, T*, int64_t);                                    \
  template void multiply(const T*, const float*, T*, int64_t);                                                     \
  template void accumulate(const T*, Compute<T>*, int64_t);                                                        \
  template void rotate(const T*, const Compute<T>*, const Compute<T>*, T*, int64_t, int64_t, int64_t, Compute<T>); \
  template double row_max(const T*, int64_t);                                                                      \
  template double row_exponentials(T*, int64_t, double, bool);                                                     \
  template void row_softmax(T*, int64_t, double, double);                                                          \
  template double element(const T*, int64_t);                                                                      \
  template void set_element(T*, int64_t, double);
CARAVAN_INSTANTIATE(float)
CARAVAN_INSTANTIATE(double)
CARAVAN_INSTANTIATE(Bf16)
CARAVAN_INSTANTIATE(Fp16)

}  // namespace caravan::kernels
