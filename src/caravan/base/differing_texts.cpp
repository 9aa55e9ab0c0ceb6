#include "caravan/base/differing_texts.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace caravan {
namespace {

constexpr size_t kShown = 200;
constexpr size_t kBefore = 20;  ///< bytes shown before the first difference

using Entries = std::vector<std::string_view>;

/// The entries of "[a, [b, c], \"d, e\"]"; nothing if the text is no list.
std::optional<Entries> list_entries(std::string_view text) {
  if (!text.starts_with('[') || !text.ends_with(']')) return std::nullopt;
  text = text.substr(1, text.size() - 2);
  Entries entries;
  int depth = 0;
  bool is_quoted = false;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      is_quoted = !is_quoted;
    } else if (!is_quoted) {
      depth += static_cast<int>(c == '[' || c == '{') - static_cast<int>(c == ']' || c == '}');
      if (c != ',' || depth != 0) continue;
      entries.push_back(text.substr(begin, i - begin));
      begin = text.find_first_not_of(' ', i + 1);
      if (begin == std::string_view::npos) return std::nullopt;
    }
  }
  if (!text.empty()) entries.push_back(text.substr(begin));
  return entries;
}

bool is_inside_character(std::string_view text, size_t at) {
  return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
}

/// kShown bytes of the text from `begin`, or a little more, so that no character of UTF-8 is cut.
std::string part_of(std::string_view text, size_t begin) {
  if (text.size() <= kShown) return std::string(text);
  begin = std::min(begin, text.size() - kShown);
  while (begin > 0 && is_inside_character(text, begin)) --begin;
  size_t end = std::min(begin + kShown, text.size());
  while (is_inside_character(text, end)) ++end;
  return fmt::format("{}{}{} ({} bytes left out)", begin > 0 ? ".. " : "", text.substr(begin, end - begin),
                     end < text.size() ? " .." : "", text.size() - (end - begin));
}

DifferingTexts parts_of(std::string_view first, std::string_view other) {
  const size_t same = static_cast<size_t>(std::ranges::mismatch(first, other).in1 - first.begin());
  const size_t begin = same <= kShown / 2 ? 0 : same - kBefore;
  return {part_of(first, begin), part_of(other, begin)};
}

std::string entry_text(const Entries& entries, size_t i, const std::string& shown) {
  if (i >= entries.size()) return fmt::format("a list of {} entries", entries.size());
  return fmt::format("a list of {} entries, number {} being {}", entries.size(), i + 1, shown);
}

}  // namespace

DifferingTexts differing_texts(std::string_view first, std::string_view other) {
  if (std::max(first.size(), other.size()) <= kShown) return {std::string(first), std::string(other)};
  const auto entries = list_entries(first), others = list_entries(other);
  if (!entries || !others) return parts_of(first, other);
  const auto i = static_cast<size_t>(std::ranges::mismatch(*entries, *others).in1 - entries->begin());
  if (i >= std::max(entries->size(), others->size())) return parts_of(first, other);
  const auto entry = [&](const Entries& list) { return i < list.size() ? list[i] : std::string_view(); };
  const auto [shown, other_shown] = parts_of(entry(*entries), entry(*others));
  return {entry_text(*entries, i, shown), entry_text(*others, i, other_shown)};
}

}  // namespace caravan
