#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace caravan {

/// The byte-level alphabet of GPT-2: each byte stands for one printable character, so that a vocabulary of byte strings
/// can be written in JSON. Printable Latin-1 bytes stand for themselves, the others for U+0100, U+0101, ...
class ByteAlphabet {
 public:
  static const ByteAlphabet& instance();

  char32_t character(unsigned char byte) const noexcept { return characters_[byte]; }
  /// The bytes in the order of their characters: token id i of a fresh vocabulary is byte order()[i].
  const std::array<unsigned char, 256>& order() const noexcept { return order_; }

  /// "Ġthe" for " the".
  std::string encode(std::string_view bytes) const;
  /// " the" for "Ġthe"; nothing if a character is not of the alphabet. `text` is UTF-8.
  std::optional<std::string> decode(std::string_view text) const;

 private:
  ByteAlphabet();
  std::array<char32_t, 256> characters_{};
  std::array<unsigned char, 256> order_{};
  std::array<int16_t, 0x180> bytes_{};  // by character; -1: none
};

}  // namespace caravan
