#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/data/unicode/regex.h"

namespace caravan {

/// An entry of added_tokens: a token that is searched in the text before the text is split into words.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool is_single_word = false;  ///< matches only if no word character is next to it
  bool strips_left = false;     ///< includes the white space to its left
  bool strips_right = false;
  bool is_normalized = false;  ///< searched in the normalized text, after the others
  bool is_special = false;     ///< decoding may skip it
};

/// Finds the added tokens of one kind in text: the leftmost match, and the longest of those that start there.
class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);
  bool is_empty() const noexcept { return tokens_.empty(); }

  /// A stretch of text: a token, or the text between two tokens (`id` is empty).
  struct Stretch {
    std::string_view text;
    std::optional<int32_t> id;
  };
  /// Splits `text`, well-formed UTF-8, into stretches.
  std::vector<Stretch> split(std::string_view text) const;

 private:
  struct Node {
    std::map<char, size_t> children;
    const AddedToken* token = nullptr;
  };
  const AddedToken* longest_at(std::string_view text) const;
  bool stands_alone(std::string_view text, size_t begin, size_t end) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::optional<Regex> word_character_;  // set if some token is a single word
};

}  // namespace caravan
