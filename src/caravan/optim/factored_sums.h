#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "caravan/base/parallel_for.h"
#include "caravan/optim/adafactor_kernels.h"
#include "caravan/optim/factored_moments.h"

namespace caravan {

// Loops over what a rank holds, in plain memory, on its threads. The same bits for any number of threads.

inline constexpr int64_t kElementsAtOnce = int64_t{1} << 15;  ///< of a part of a loop
inline constexpr int64_t kColumnsAtOnce = 64;

/// Calls f(first, block) for parts of the rows of a block, on the threads of the rank.
template <class F>
void for_rows_of(const FactoredBlock& of, const F& f) {
  parallel_for(0, of.rows, std::max<int64_t>(1, kElementsAtOnce / of.columns), [&](int64_t begin, int64_t end) {
    f(begin, kernels::MatrixBlock{.rows = end - begin, .columns = of.columns, .stride = of.stride});
  });
}

/// The sum of f(begin, count) over parts of `count` elements: the same bits for any number of threads.
template <class F>
double sum_over_parts(int64_t count, const F& f) {
  std::vector<double> sums(static_cast<size_t>((count + kElementsAtOnce - 1) / kElementsAtOnce));
  parallel_for(0, static_cast<int64_t>(sums.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      sums[static_cast<size_t>(i)] = f(i * kElementsAtOnce, std::min(kElementsAtOnce, count - i * kElementsAtOnce));
    }
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

/// Adds the squares of a piece to the sums of all rows and of all columns.
template <class T, class G>
void add_squares_of_piece(const FactoredParameter& of, const G* gradients, double scale, T* rows, T* columns) {
  for (const FactoredBlock& block : of.blocks) {
    for_rows_of(block, [&](int64_t first, const kernels::MatrixBlock& part) {
      kernels::add_squares_of_rows(gradients + block.first + first * block.stride, part, scale,
                                   rows + block.row + first);
    });
    // Whole columns at once, so that sums do not depend on the number of threads.
    const int64_t stretches = (block.columns + kColumnsAtOnce - 1) / kColumnsAtOnce;
    const int64_t grain = std::max<int64_t>(1, kElementsAtOnce / (kColumnsAtOnce * block.rows));
    parallel_for(0, stretches, grain, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kColumnsAtOnce, count = std::min(end * kColumnsAtOnce, block.columns) - first;
      kernels::add_squares_of_columns(gradients + block.first + first,
                                      {.rows = block.rows, .columns = count, .stride = block.stride}, scale,
                                      columns + block.column + first);
    });
  }
}

/// The sum of squares of the update of a piece.
template <class T, class G>
double squares_of_piece(const FactoredParameter& of, const G* gradients, double scale, const T* rows,
                        const T* columns) {
  double sum = 0;
  for (const FactoredBlock& block : of.blocks) {
    std::vector<double> of_rows(static_cast<size_t>(block.rows));
    for_rows_of(block, [&](int64_t first, const kernels::MatrixBlock& part) {
      kernels::squares_of_update(gradients + block.first + first * block.stride, part, rows + block.row + first,
                                 columns + block.column, scale, of_rows.data() + first);
    });
    sum = std::accumulate(of_rows.begin(), of_rows.end(), sum);
  }
  return sum;
}

/// Moves means over rows or columns, of one matrix, towards those of this step: sums over `over` elements. Replaces
/// the sums by the factors of an update: the inverse roots of the new means, relative to the mean of these if that is
/// asked for.
template <class T>
void move_means(T* means, T* sums, int64_t count, int64_t over, double rest, double epsilon, bool is_relative) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double mean = static_cast<double>(sums[i]) / static_cast<double>(over) + epsilon;
    means[i] = static_cast<T>((1 - rest) * static_cast<double>(means[i]) + rest * mean);
    total += static_cast<double>(means[i]);
  }
  const double unit = is_relative ? total / static_cast<double>(count) : 1;
  for (int64_t i = 0; i < count; ++i) sums[i] = static_cast<T>(1 / std::sqrt(static_cast<double>(means[i]) / unit));
}

}  // namespace caravan
