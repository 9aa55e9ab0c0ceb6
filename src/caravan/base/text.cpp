#include "caravan/base/text.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace caravan {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({substitute, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

}  // namespace

std::string join(std::span<const std::string> parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::string join(std::span<const int64_t> numbers, std::string_view separator) {
  return fmt::format("{}", fmt::join(numbers, separator));
}

std::string some_of(std::span<const std::string> names, size_t most) {
  if (names.size() <= most) return join(names);
  return fmt::format("{} and {} more", join(names.first(most)), names.size() - most);
}

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  const std::string lowered = lower(word);
  auto least = std::pair(true, std::numeric_limits<size_t>::max());  // a prefix, false, comes first
  for (const std::string& candidate : candidates) {
    const bool is_prefix = !word.empty() && candidate.starts_with(word);
    const auto distance = std::pair(!is_prefix, edit_distance(lowered, lower(candidate)));
    if (distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

std::string not_one_of(std::string_view given, std::span<const std::string> choices) {
  return fmt::format("'{}' is not one of {}; the nearest is '{}'", given, join(choices), nearest(given, choices));
}

std::string format_bytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.{}f} {}", value, value < 100 ? 1 : 0, kUnits[unit]);
}

std::optional<int64_t> parse_bytes(std::string_view text) {
  constexpr std::string_view kUnits = "KMGT";
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, fault] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (fault != std::errc() || !(number >= 0)) return std::nullopt;
  const size_t unit = stop + 1 == end ? kUnits.find(*stop) : std::string_view::npos;
  if (stop != end && unit == std::string_view::npos) return std::nullopt;
  const double bytes = stop == end ? number : std::ldexp(number, 10 * static_cast<int>(unit + 1));
  return bytes < 0x1p62 ? std::optional(static_cast<int64_t>(bytes)) : std::nullopt;
}

std::string format_count(double count) {
  constexpr const char* kUnits[] = {"", " k", " M", " B", " T", " P", " E"};
  size_t unit = 0;
  while (count >= 1000 && unit + 1 < std::size(kUnits)) {
    count /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{}", static_cast<int64_t>(count)) : fmt::format("{:.2f}{}", count, kUnits[unit]);
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const int tail = lead < 0x80 ? 0 : lead >= 0xC2 && lead < 0xE0 ? 1 : lead >= 0xE0 && lead < 0xF0 ? 2 : 3;
    if (lead >= 0x80 && (lead < 0xC2 || lead > 0xF4)) return false;
    if (i + tail >= text.size() && tail > 0) return false;
    uint32_t point = tail == 0 ? lead : lead & (0x3F >> tail);
    for (int k = 1; k <= tail; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xC0) != 0x80) return false;
      point = point << 6 | (next & 0x3F);
    }
    const bool overlong = (tail == 2 && point < 0x800) || (tail == 3 && point < 0x10000);
    if (overlong || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) return false;
    i += tail + 1;
  }
  return true;
}

}  // namespace caravan
