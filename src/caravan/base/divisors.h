#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace caravan {

/// The divisors of `number`, in ascending order. Takes sqrt(number) steps. Empty for 0 and below.
std::vector<int64_t> divisors(int64_t number);

/// Those from `least` to `most`.
std::vector<int64_t> divisors(int64_t number, int64_t least, int64_t most);

/// Of `ascending` numbers, the nearest to `n`: at most `on_each_side` up to n, and as many above it.
std::vector<int64_t> nearest(const std::vector<int64_t>& ascending, int64_t n, size_t on_each_side);

/// For error messages: the multiples of `divisor` beside `number`, "8 or 12"; the first one, "4", if none is below.
std::string multiples_near(int64_t number, int64_t divisor);

/// For error messages: the nearest divisors of `number` to `n`, "{1, 2, 4, 5, 8, 10}".
std::string divisors_near(int64_t number, int64_t n, size_t on_each_side = 4);

}  // namespace caravan
