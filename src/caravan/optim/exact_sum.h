#pragma once

#include <array>
#include <cstdint>

namespace caravan {

/// The sum of numbers that are not negative, without rounding: the same bits for any order and any split over ranks. A
/// fixed-point number as wide as the range of fp64, in limbs of 32 bits with room for carries.
class ExactSum {
 public:
  /// Adds a number of at least 0; infinities and NaN are counted.
  void add(double value) noexcept;
  /// Rounded deterministically. Infinity or NaN if one was added.
  double value() const noexcept;

  /// The whole state as integers, which are summed over ranks element by element. At most 2^30 numbers in total.
  static constexpr int kLimbs = 68;
  std::array<int64_t, kLimbs + 2>& words() noexcept { return words_; }

 private:
  std::array<int64_t, kLimbs + 2> words_{};  ///< the limbs, lowest first; the numbers of infinities and of NaNs
};

}  // namespace caravan
