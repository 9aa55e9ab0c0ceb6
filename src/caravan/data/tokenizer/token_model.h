#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace caravan {

/// Scratch memory of encoding a word, one per thread.
struct ModelScratch {
  struct Symbol {
    int32_t id;  ///< WordMerger::kGone once merged into its left neighbour
    uint32_t previous;
    uint32_t next;
  };
  struct PathNode {
    double score;
    int64_t begin;  ///< -1: no path ends here
    int32_t id;
  };
  std::vector<int32_t> ids;
  std::vector<Symbol> symbols;
  std::vector<uint64_t> initial;
  std::vector<uint64_t> heap;
  std::vector<PathNode> path;
  std::string text;
};

/// A vocabulary and the way in which it encodes one word. Immutable.
class TokenModel {
 public:
  TokenModel() = default;
  TokenModel(const TokenModel&) = delete;  // the maps point into the tokens
  TokenModel& operator=(const TokenModel&) = delete;
  virtual ~TokenModel() = default;

  /// One past the largest id.
  virtual int64_t size() const noexcept = 0;
  /// Id of the token that the file writes as `text`.
  virtual std::optional<int32_t> find(std::string_view text) const = 0;
  /// Token `id` as the file writes it, or, if `has_bytes()`, the bytes that this stands for; "" if the id is unused.
  virtual std::string_view token(int32_t id) const noexcept = 0;
  /// Token `id` as the file writes it.
  virtual std::string text(int32_t id) const { return std::string(token(id)); }
  /// Words are bytes, not text in the byte-level alphabet.
  virtual bool has_bytes() const noexcept { return false; }
  /// Whether `first_part` may return less than a word.
  virtual bool cuts_words() const noexcept { return false; }
  /// Bytes of the first part of `word` whose ids do not depend on the rest, nor those of the rest on it.
  virtual size_t first_part(std::string_view word) const { return word.size(); }
  /// Appends the ids of a word, which is not empty. Throws DataError for a word of 4 GiB or more.
  virtual void encode_word(std::string_view word, ModelScratch& scratch, std::vector<int32_t>& ids) const = 0;
};

/// Tokens by id, and ids by token.
class Vocabulary {
 public:
  /// nullopt: an unused id. Of equal tokens, the last is found.
  explicit Vocabulary(std::vector<std::optional<std::string>> tokens);
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  int64_t size() const noexcept { return static_cast<int64_t>(tokens_.size()); }
  std::optional<int32_t> find(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  std::string_view token(int32_t id) const noexcept {
    return id < size() ? std::string_view(tokens_[static_cast<size_t>(id)]) : std::string_view();
  }
  /// The ids of "<0x00>" to "<0xFF>"; -1: there is no such token.
  std::vector<int32_t> byte_tokens() const;

 private:
  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, int32_t> ids_;  // keys point into tokens_
};

/// Throws DataError for a word too long for 32-bit positions.
void check_word_size(std::string_view word);

}  // namespace caravan
