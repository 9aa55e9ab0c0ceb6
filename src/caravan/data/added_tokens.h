#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/data/regex.h"

namespace caravan {

/// A token that is looked for in the text before it is cut into words: an entry of added_tokens.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool is_single_word = false;  ///< only where no word character stands beside it
  bool strips_left = false;     ///< takes the white space on its left with it
  bool strips_right = false;
  bool is_normalized = false;  ///< looked for in the normalised text, after the others
  bool is_special = false;     ///< left out by a decoder that is asked to
};

/// Finds the added tokens of one kind in text: the leftmost first, and of those that begin there the longest.
class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);
  bool is_empty() const noexcept { return tokens_.empty(); }

  /// A stretch of text: a token, or what lies between tokens (`id` is empty).
  struct Stretch {
    std::string_view text;
    std::optional<int32_t> id;
  };
  /// Cuts `text`, well-formed UTF-8, into stretches.
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
  std::optional<Regex> word_character_;  // if a token is a single word
};

}  // namespace caravan
