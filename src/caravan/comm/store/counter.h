#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>

namespace caravan {

/// What add() does to the value under a key, in every store: counters are kept as decimal text, so that get() reads
/// them. Returns the sum and writes it to `value`; empty if `value` holds something else than a number.
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
