#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace caravan {

/// The divisors of `number`, in ascending order. Takes sqrt(number) steps. Empty for 0 and below.
std::vector<int64_t> divisors(int64_t number);

/// The divisors between `least` and `most`.
std::vector<int64_t> divisors(int64_t number, int64_t least, int64_t most);

/// The nearest numbers to `n` in `ascending`: at most `on_each_side` up to n, and as many above it.
std::vector<int64_t> nearest(const std::vector<int64_t>& ascending, int64_t n, size_t on_each_side);

/// For error messages: the multiples of `divisor` next to `number`, "8 or 12"; the first one, "4", if none is below.
std::string multiples_near(int64_t number, int64_t divisor);

/// For error messages: the divisors of `number` nearest to `n`, "{1, 2, 4, 5, 8, 10}".
std::string divisors_near(int64_t number, int64_t n, size_t on_each_side = 4);

}  // namespace caravan
