#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>

namespace caravan {

/// Implements add() for all stores. Counters are stored as decimal text, so that get() can read them. Updates `value`
/// and returns the sum; empty if `value` is not a number or the sum overflows.
inline std::optional<int64_t> add_to_counter(std::string& value, int64_t amount) {
  int64_t sum = 0;
  if (!value.empty()) {
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), sum);
    if (error != std::errc{} || end != value.data() + value.size()) return std::nullopt;
  }
  if (__builtin_add_overflow(sum, amount, &sum)) return std::nullopt;
  value = std::to_string(sum);
  return sum;
}

}  // namespace caravan
