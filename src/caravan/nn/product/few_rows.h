#pragma once

#include <cstdint>

#include "caravan/nn/product/kernels.h"

/// Products of few rows with a weight, which is read from memory once for all of them. Single-threaded; the same bits
/// on every machine, for any number of rows, and for any division of the weight.
namespace caravan::kernels {

/// y = x w^T + bias. T is float, Bf16 or Fp16, Out float or T.
template <class T, class Out>
struct FewRows {
  const float* x;  ///< [rows][pitch], packed
  int64_t pitch, rows;
  const T* w;  ///< [n][stride]
  int64_t stride, k;
  const float* bias;  ///< [n], or null
  Out* y;             ///< [rows][y_pitch]
  int64_t y_pitch;
};

inline constexpr int64_t kWeightRows = 8;  ///< that are read at once
/// The number of floats that multiply_few_rows computes in.
constexpr int64_t few_rows_scratch(int64_t rows) { return (rows * kRowStep + 512) * kWeightRows; }

/// Columns [first, end) of y: added up in fp32, rounded once.
template <class T, class Out>
void multiply_few_rows(const FewRows<T, Out>& of, int64_t first, int64_t end, float* scratch);

}  // namespace caravan::kernels
