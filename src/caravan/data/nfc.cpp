#include "caravan/data/nfc.h"

#include <algorithm>
#include <cstdlib>

#include <utf8proc.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

bool is_ascii(char byte) { return static_cast<signed char>(byte) >= 0; }

void append_nfc(std::string_view text, std::string& out) {
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &composed, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (size < 0) {
    throw ResourceError({.op = "tokenizer",
                         .subject = "NFC of " + format_bytes(static_cast<int64_t>(text.size())) + " of text",
                         .fact = utf8proc_errmsg(size),
                         .where = {},
                         .action = "tokenize it in smaller pieces"});
  }
  out.append(reinterpret_cast<const char*>(composed), static_cast<size_t>(size));
  std::free(composed);
}

}  // namespace

std::string_view to_nfc(std::string_view text, std::string& scratch) {
  const auto find_end = [&](size_t from, bool of_ascii) {
    const auto* end = std::find_if(text.begin() + from, text.end(), [=](char c) { return is_ascii(c) != of_ascii; });
    return static_cast<size_t>(end - text.begin());
  };
  size_t begin = find_end(0, true);
  if (begin == text.size()) return text;
  scratch.clear();
  // No ASCII character composes with what stands before it, so each run of others is normalised by itself, together with
  // the one ASCII character that it may compose with.
  for (size_t done = 0; done < text.size();) {
    const size_t base = begin > done ? begin - 1 : begin;
    const size_t end = find_end(begin, false);
    scratch.append(text.substr(done, base - done));
    if (base < end) append_nfc(text.substr(base, end - base), scratch);
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
