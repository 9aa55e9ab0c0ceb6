#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace caravan {

/// The byte-level alphabet of GPT-2: each byte maps to one printable character, so that a vocabulary of byte strings
/// can be written as JSON. Printable Latin-1 bytes map to themselves, the others to U+0100, U+0101, ...
class ByteAlphabet {
 public:
  static const ByteAlphabet& instance();

  char32_t character(unsigned char byte) const noexcept { return characters_[byte]; }
  /// The bytes in the order of their characters: token i of a new vocabulary is byte order()[i].
  const std::array<unsigned char, 256>& order() const noexcept { return order_; }

  /// "Ġthe" for " the".
  std::string encode(std::string_view bytes) const;
  /// " the" for "Ġthe"; nullopt if a character is not in the alphabet. `text` is UTF-8.
  std::optional<std::string> decode(std::string_view text) const;

 private:
  ByteAlphabet();
  std::array<char32_t, 256> characters_{};
  std::array<unsigned char, 256> order_{};
  std::array<int16_t, 0x180> bytes_{};  // by character; -1: none
};

}  // namespace caravan
