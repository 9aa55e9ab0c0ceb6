#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace caravan {

/// The normalization rules of a SentencePiece model: a map from short texts to texts, in a double-array trie of Darts.
class Charsmap {
 public:
  /// `binary`: the size of the trie in bytes (uint32, little-endian), the trie, the texts, each ended by a zero byte.
  /// nullopt if it is damaged.
  static std::optional<Charsmap> parse(std::string_view binary);

  /// What the shortest beginning of `text` that has a rule becomes; nullopt if none has. As in `tokenizers`, this then
  /// replaces all of `text`.
  std::optional<std::string_view> find(std::string_view text) const;

 private:
  std::vector<uint32_t> trie_;
  std::string texts_;
};

/// nullopt if `text` is not base64.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace caravan
