#include "caravan/data/unicode/utf8.h"

#include <cstring>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {

Utf8Step utf8_step(std::string_view bytes) noexcept {
  const auto lead = static_cast<unsigned char>(bytes[0]);
  if (lead < 0x80) return {Utf8Step::complete, 1, lead};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Step::invalid, 1, 0};
  const int tail = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
  char32_t point = lead & (0x3F >> tail);
  // The bounds of the second byte exclude overlong forms, surrogates and code points beyond U+10FFFF.
  unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (int k = 1; k <= tail; ++k) {
    const auto length = static_cast<uint8_t>(k);
    if (static_cast<size_t>(k) == bytes.size()) return {Utf8Step::incomplete, length, 0};
    const auto next = static_cast<unsigned char>(bytes[k]);
    if (next < low || next > high) return {Utf8Step::invalid, length, 0};
    point = (point << 6) | (next & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Step::complete, static_cast<uint8_t>(tail + 1), point};
}

size_t utf8_error(std::string_view text) noexcept {
  size_t at = 0;
  while (at < text.size()) {
    // Eight ASCII bytes at a time: most text is ASCII.
    uint64_t word = 0;
    while (at + sizeof word <= text.size()) {
      std::memcpy(&word, text.data() + at, sizeof word);
      if ((word & 0x8080808080808080) != 0) break;
      at += sizeof word;
    }
    if (at == text.size()) break;
    const Utf8Step step = utf8_step(text.substr(at));
    if (step.kind != Utf8Step::complete) return at;
    at += step.length;
  }
  return kNoUtf8Error;
}

void check_utf8(std::string_view text, std::string_view op, std::string_view subject, DataObserver& observer) {
  size_t at = kNoUtf8Error;
  size_t end = 0;  // of what is well-formed so far
  in_pieces(text, observer, [&](std::string_view piece) {
    if (at != kNoUtf8Error) return;
    const auto piece_end = static_cast<size_t>(piece.data() + piece.size() - text.data());
    const std::string_view rest = text.substr(end, piece_end - end);
    const size_t wrong = utf8_error(rest);
    if (wrong == kNoUtf8Error) {
      end = piece_end;
      return;
    }
    end += wrong;
    // A piece may end inside a character, which is left to the next one.
    const bool is_cut = piece_end < text.size() && utf8_step(rest.substr(wrong)).kind == Utf8Step::incomplete;
    if (!is_cut) at = end;
  });
  if (at == kNoUtf8Error) return;
  throw DataError({.op = std::string(op),
                   .subject = std::string(subject),
                   .fact = fmt::format("is not UTF-8: byte 0x{:02X} at offset {} of {}",
                                       static_cast<unsigned char>(text[at]), at, text.size()),
                   .action = "convert the text to UTF-8, for example with iconv"});
}

void append_utf8(std::string& out, char32_t point) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (point < 0x80) {
    put(point);
  } else if (point < 0x800) {
    put(0xC0 | point >> 6);
    put(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    put(0xE0 | point >> 12);
    put(0x80 | (point >> 6 & 0x3F));
    put(0x80 | (point & 0x3F));
  } else {
    put(0xF0 | point >> 18);
    put(0x80 | (point >> 12 & 0x3F));
    put(0x80 | (point >> 6 & 0x3F));
    put(0x80 | (point & 0x3F));
  }
}

std::string take_utf8(std::string& pending, bool is_end) {
  constexpr char32_t kReplacement = 0xFFFD;
  std::string out;
  std::string_view rest = pending;
  while (!rest.empty()) {
    const Utf8Step step = utf8_step(rest);
    if (step.kind == Utf8Step::incomplete && !is_end) break;
    if (step.kind == Utf8Step::complete) {
      out += rest.substr(0, step.length);
    } else {
      append_utf8(out, kReplacement);
    }
    rest.remove_prefix(step.length);
  }
  pending.erase(0, pending.size() - rest.size());
  return out;
}

}  // namespace caravan
