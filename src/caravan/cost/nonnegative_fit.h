#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

namespace caravan {

/// The numbers x >= 0 for which the sum of x[i] row[i] of each row is nearest to its target, by least squares; 0 for a
/// column of zeros. By coordinate descent, which converges since the problem is convex.
template <size_t N>
std::array<double, N> fit_nonnegative(const std::vector<std::array<double, N>>& rows,
                                      const std::vector<double>& targets) {
  constexpr int kMostRounds = 100'000;
  constexpr double kConverged = 1e-10;
  std::array<double, N> x{};
  for (int round = 0; round < kMostRounds; ++round) {
    bool has_moved = false;
    for (size_t i = 0; i < N; ++i) {
      double square = 0, left = 0;
      for (size_t at = 0; at < rows.size(); ++at) {
        double others = 0;
        for (size_t j = 0; j < N; ++j) others += j == i ? 0 : x[j] * rows[at][j];
        square += rows[at][i] * rows[at][i];
        left += rows[at][i] * (targets[at] - others);
      }
      const double better = square > 0 ? std::max(0.0, left / square) : 0;
      has_moved = has_moved || std::abs(better - x[i]) > kConverged * better;
      x[i] = better;
    }
    if (!has_moved) break;
  }
  return x;
}

}  // namespace caravan
