#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "caravan/data/windows/data_observer.h"

namespace caravan {

/// The result of decoding at one position, by table 3-7 of the Unicode standard.
struct Utf8Step {
  enum Kind : uint8_t {
    complete,    ///< a code point
    invalid,     ///< ill-formed: `length` bytes are replaced by one U+FFFD
    incomplete,  ///< the text ends within a code point that more bytes could complete
  };
  Kind kind;
  uint8_t length;  ///< bytes
  char32_t point;  ///< if complete
};

/// Decodes at the start of `bytes`, which is not empty.
Utf8Step utf8_step(std::string_view bytes) noexcept;

inline constexpr size_t kNoUtf8Error = ~size_t{0};
/// Offset of the first byte that is not well-formed UTF-8, kNoUtf8Error if there is none.
size_t utf8_error(std::string_view text) noexcept;

/// Throws DataError naming `subject` and the offset of the first byte that is not UTF-8.
void check_utf8(std::string_view text, std::string_view op, std::string_view subject,
                DataObserver& observer = DataObserver::none());

void append_utf8(std::string& out, char32_t point);

/// Takes the complete characters from the front of `pending`, with U+FFFD for what is ill-formed. What more bytes could
/// complete stays, unless `is_end`.
std::string take_utf8(std::string& pending, bool is_end);

/// True for a continuation byte.
inline bool is_utf8_tail(char byte) noexcept { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

}  // namespace caravan
