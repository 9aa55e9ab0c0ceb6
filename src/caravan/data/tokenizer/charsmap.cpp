#include "caravan/data/tokenizer/charsmap.h"

#include <cstring>

namespace caravan {
namespace {

// The parts of a unit of the double array.
bool has_value(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t value_of(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t label_of(uint32_t unit) { return unit & 0x800000FF; }
uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit & 0x200) >> 6); }

}  // namespace

std::optional<Charsmap> Charsmap::parse(std::string_view binary) {
  uint32_t size = 0;
  if (binary.size() < sizeof size) return std::nullopt;
  for (size_t i = 0; i < sizeof size; ++i)
    size |= static_cast<uint32_t>(static_cast<unsigned char>(binary[i])) << 8 * i;
  binary.remove_prefix(sizeof size);
  if (size == 0 || size > binary.size() || size % sizeof(uint32_t) != 0) return std::nullopt;
  Charsmap map;
  map.trie_.resize(size / sizeof(uint32_t));
  std::memcpy(map.trie_.data(), binary.data(), size);
  map.texts_ = binary.substr(size);
  return map;
}

std::optional<std::string_view> Charsmap::find(std::string_view text) const {
  size_t node = offset_of(trie_[0]);
  for (const char byte : text) {
    const auto label = static_cast<unsigned char>(byte);
    node ^= label;
    if (label == 0 || node >= trie_.size() || label_of(trie_[node]) != label) return std::nullopt;
    const uint32_t unit = trie_[node];
    node ^= offset_of(unit);
    if (!has_value(unit)) continue;
    if (node >= trie_.size() || value_of(trie_[node]) > texts_.size()) return std::nullopt;
    const std::string_view rest = std::string_view(texts_).substr(value_of(trie_[node]));
    return rest.substr(0, rest.find('\0'));
  }
  return std::nullopt;
}

std::optional<std::string> decode_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  if (text.size() % 4 == 1) return std::nullopt;
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char digit : text) {
    const size_t value = kDigits.find(digit);
    if (value == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out.push_back(static_cast<char>(bits >> count & 0xFF));
  }
  return out;
}

}  // namespace caravan
