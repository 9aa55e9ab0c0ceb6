#include "caravan/data/tokenizer/byte_alphabet.h"

#include "caravan/data/unicode/utf8.h"

namespace caravan {

ByteAlphabet::ByteAlphabet() {
  const auto stands_for_itself = [](int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
  };
  bytes_.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t character = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
    characters_[byte] = character;
    bytes_[character] = static_cast<int16_t>(byte);
  }
  size_t count = 0;
  for (const int16_t byte : bytes_) {
    if (byte >= 0) order_[count++] = static_cast<unsigned char>(byte);
  }
}

const ByteAlphabet& ByteAlphabet::instance() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

std::string ByteAlphabet::encode(std::string_view bytes) const {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char byte : bytes) append_utf8(out, characters_[static_cast<unsigned char>(byte)]);
  return out;
}

std::optional<std::string> ByteAlphabet::decode(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    if (step.kind != Utf8Step::complete || step.point >= bytes_.size() || bytes_[step.point] < 0) return std::nullopt;
    out.push_back(static_cast<char>(bytes_[step.point]));
    text.remove_prefix(step.length);
  }
  return out;
}

}  // namespace caravan
