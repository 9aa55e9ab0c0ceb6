#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace caravan {

/// Joins with a separator: "a, b, c".
std::string join(std::span<const std::string> parts, std::string_view separator = ", ");
std::string join(std::span<const int64_t> numbers, std::string_view separator = ", ");
/// Lists at most `most` names: "a, b, c and 9 more".
std::string some_of(std::span<const std::string> names, size_t most);

/// The least number of letters to change, add or remove that makes `a` into `b`.
size_t edit_distance(std::string_view a, std::string_view b);

/// The closest candidate by edit distance, preferring those that begin with `word`; the first on a tie, "" if there are
/// none.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

/// For error messages: "'fp17' is not one of fp32, bf16, fp16; the nearest is 'fp16'".
std::string not_one_of(std::string_view given, std::span<const std::string> choices);

/// "1.5 GiB", "12 KiB", "640 B".
std::string format_bytes(int64_t bytes);

/// The number of bytes that "500000000", "500M" or "1.5G" means; nothing if it is not such a text.
std::optional<int64_t> parse_bytes(std::string_view text);

/// "12.3 M", "1.5 B", "640": counts of parameters, FLOPs, tokens.
std::string format_count(double count);

/// True if `text` is well-formed UTF-8.
bool is_utf8(std::string_view text);

}  // namespace caravan
