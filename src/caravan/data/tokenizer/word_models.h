#pragma once

#include <unordered_map>

#include "caravan/data/tokenizer/token_model.h"

namespace caravan {

/// WordPiece: the longest token that begins a word, then the longest that goes on, and so forth. A word that cannot be
/// spelled so is one unknown token.
class WordPieceModel final : public TokenModel {
 public:
  struct Parts {
    std::vector<std::optional<std::string>> tokens;  ///< by id
    std::string continuing_prefix;                   ///< of tokens that go on: "##"
    int32_t unknown_id = 0;
    int64_t most_characters = 100;  ///< of a word; longer ones are unknown
  };
  explicit WordPieceModel(Parts parts);

  int64_t size() const noexcept override { return vocabulary_.size(); }
  std::optional<int32_t> find(std::string_view text) const override { return vocabulary_.find(text); }
  std::string_view token(int32_t id) const noexcept override { return vocabulary_.token(id); }
  void encode_word(std::string_view word, ModelScratch& scratch, std::vector<int32_t>& ids) const override;

 private:
  Vocabulary vocabulary_;
  std::unordered_map<std::string_view, int32_t> continuing_;  // keys are tokens without the prefix
  size_t longest_ = 0;                                        // token, in bytes
  int32_t unknown_id_;
  int64_t most_characters_;
};

/// A word is a token, or unknown.
class WordLevelModel final : public TokenModel {
 public:
  WordLevelModel(std::vector<std::optional<std::string>> tokens, int32_t unknown_id)
      : vocabulary_(std::move(tokens)), unknown_id_(unknown_id) {}

  int64_t size() const noexcept override { return vocabulary_.size(); }
  std::optional<int32_t> find(std::string_view text) const override { return vocabulary_.find(text); }
  std::string_view token(int32_t id) const noexcept override { return vocabulary_.token(id); }
  void encode_word(std::string_view word, ModelScratch& /*scratch*/, std::vector<int32_t>& ids) const override {
    ids.push_back(vocabulary_.find(word).value_or(unknown_id_));
  }

 private:
  Vocabulary vocabulary_;
  int32_t unknown_id_;
};

}  // namespace caravan
