#pragma once

#include <cstdint>

/// Kernels of the layers that no single ATen op covers, on plain memory. T is float, double, Bf16 or Fp16; these two
/// are computed in fp32 and rounded once. Vectorised, with the same bits on every machine. Single-threaded: callers
/// split the rows.
namespace caravan::kernels {

struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

/// Packed rows of fp32 are a multiple of it, with zeros beyond the width.
inline constexpr int64_t kRowStep = 8;

/// The type that T is computed in.
template <class T>
struct ComputeOf {
  using type = float;
};
template <>
struct ComputeOf<double> {
  using type = double;
};
template <class T>
using Compute = typename ComputeOf<T>::type;

/// y = x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), the tanh form of GELU. `slope`: its derivative, which costs little
/// beside y and takes as much memory as x would until backward; null: not wanted. dx = dy * slope: of 16 bits, the
/// slope is rounded, and then dx.
template <class T>
void gelu(const T* x, T* y, T* slope, int64_t count);
template <class T>
void gelu_backward(const T* dy, const T* slope, T* dx, int64_t count);

/// y = gate sigmoid(gate) up.
template <class T>
void swiglu(const T* gate, const T* up, T* y, int64_t count);
template <class T>
void swiglu_backward(const T* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t count);

/// y = x * mask, mask in fp32.
template <class T>
void multiply(const T* x, const float* mask, T* y, int64_t count);
/// sum += x, in the compute type.
template <class T>
void accumulate(const T* x, Compute<T>* sum, int64_t count);

/// Columns that add_sum_of_rows adds up at once.
inline constexpr int64_t kSumColumns = 64;
/// sum [width] += the rows of x, which are `stride` apart. Not for double.
template <class T>
void add_sum_of_rows(const T* x, int64_t stride, int64_t rows, int64_t width, float* sum);

/// Rotates each pair (x[i], x[i + half]) of every head of `width` features at one position by the angle with the given
/// cosine and sine ([half] each), and copies the features behind the pairs; sign -1 rotates back.
template <class T>
void rotate(const T* x, const Compute<T>* cosine, const Compute<T>* sine, T* y, int64_t heads, int64_t half,
            int64_t width, Compute<T> sign);

// The parts of a softmax of a row, of which other ranks may have further pieces.

/// The largest element; -infinity of an empty row.
template <class T>
double row_max(const T* row, int64_t count);
/// The sum of exp(row - largest). With `keep` they may replace the row, for row_softmax: fp32 and fp64 do, 16 bits
/// would round them.
template <class T>
double row_exponentials(T* row, int64_t count, double largest, bool keep);
/// row = exp(row - largest) * factor, of a row that row_exponentials has kept.
template <class T>
void row_softmax(T* row, int64_t count, double largest, double factor);
template <class T>
double element(const T* row, int64_t index);
/// Rounds to nearest, ties to even.
template <class T>
void set_element(T* row, int64_t index, double value);

}  // namespace caravan::kernels
