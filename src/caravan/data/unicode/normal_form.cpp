#include "caravan/data/unicode/normal_form.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <utf8proc.h>
#include <utility>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/data/unicode/character_sets.h"
#include "caravan/data/unicode/unicode_additions.h"
#include "caravan/data/unicode/utf8.h"

namespace caravan {
namespace {

/// Combining marks added to Unicode between versions 9.0 and 14.0; unicode_additions() has the later ones.
constexpr std::array<std::pair<char32_t, char32_t>, 33> kLateMarks{{
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930},
    {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47},
    {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x16FF0, 0x16FF1},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
}};

/// Whether one of `ranges`, which are sorted, contains `point`; `first` and `last` are the members with its bounds.
bool holds(const auto& ranges, auto first, auto last, char32_t point) {
  const auto behind = std::ranges::upper_bound(ranges, point, {}, first);
  return behind != ranges.begin() && point <= std::invoke(last, *(behind - 1));
}

/// Characters added between 9.0 and 14.0, or in 17.0, that have a decomposition.
constexpr std::array<std::pair<char32_t, char32_t>, 9> kLateDecompositions{{
    {0x32FF, 0x32FF},
    {0xA7F1, 0xA7F4},
    {0xAB69, 0xAB69},
    {0x10781, 0x10785},
    {0x10787, 0x107B0},
    {0x107B2, 0x107BA},
    {0x11938, 0x11938},
    {0x1F16C, 0x1F16C},
    {0x1FBF0, 0x1FBF9},
}};

/// True for a character that is unassigned in Unicode 9.0, which `tokenizers` uses to normalize: it keeps its place,
/// nothing moves across it or composes with it, and it does not decompose.
bool is_inert(char32_t point, NormalForm form) {
  using Range = std::pair<char32_t, char32_t>;
  return holds(kLateMarks, &Range::first, &Range::second, point) ||
         (form != NormalForm::nfc && holds(kLateDecompositions, &Range::first, &Range::second, point)) ||
         holds(unicode_additions(), &UnicodeAddition::first, &UnicodeAddition::last, point) || is_late_mark(point);
}

bool is_ascii(char byte) { return static_cast<signed char>(byte) >= 0; }

utf8proc_option_t options_of(NormalForm form) {
  const bool composes = form == NormalForm::nfc || form == NormalForm::nfkc;
  const bool is_compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                        (is_compatible ? UTF8PROC_COMPAT : 0));
}

void append_mapped(std::string_view text, NormalForm form, std::string& out) {
  if (text.empty()) return;
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &mapped, options_of(form));
  if (size < 0) {
    throw ResourceError({.op = "tokenizer",
                         .subject = "normalizing " + format_bytes(static_cast<int64_t>(text.size())) + " of text",
                         .fact = utf8proc_errmsg(size),
                         .action = "tokenize it in smaller pieces"});
  }
  out.append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(size));
  std::free(mapped);
}

void append_run(std::string_view text, NormalForm form, std::string& out) {
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text.substr(at));
    if (is_inert(step.point, form)) {
      append_mapped(text.substr(done, at - done), form, out);
      out.append(text.substr(at, step.length));
      done = at + step.length;
    }
    at += step.length;
  }
  append_mapped(text.substr(done), form, out);
}

}  // namespace

std::string_view to_normal_form(std::string_view text, NormalForm form, std::string& scratch) {
  const auto find_end = [&](size_t from, bool of_ascii) {
    const auto* end = std::find_if(text.begin() + from, text.end(), [=](char c) { return is_ascii(c) != of_ascii; });
    return static_cast<size_t>(end - text.begin());
  };
  size_t begin = find_end(0, true);
  if (begin == text.size()) return text;
  scratch.clear();
  // No ASCII character composes with the character before it. So each run of other characters is normalized separately,
  // together with the ASCII character before it, with which it may compose.
  for (size_t done = 0; done < text.size();) {
    const size_t base = begin > done ? begin - 1 : begin;
    const size_t end = find_end(begin, false);
    scratch.append(text.substr(done, base - done));
    if (base < end) append_run(text.substr(base, end - base), form, scratch);
    done = end;
    begin = find_end(end, true);
    if (begin == text.size()) {
      scratch.append(text.substr(done));
      break;
    }
  }
  return scratch;
}

}  // namespace caravan
