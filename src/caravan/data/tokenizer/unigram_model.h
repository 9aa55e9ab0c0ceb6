#pragma once

#include "caravan/data/tokenizer/pair_map.h"
#include "caravan/data/tokenizer/token_model.h"

namespace caravan {

/// The Unigram model of SentencePiece: the tokens that spell a word with the greatest sum of scores.
class UnigramModel final : public TokenModel {
 public:
  struct Parts {
    std::vector<std::string> tokens;  ///< by id
    std::vector<double> scores;
    int32_t unknown_id = 0;
    bool falls_back_to_bytes = false;  ///< unknown characters become their bytes, such as <0x0A>
  };
  explicit UnigramModel(Parts parts);

  int64_t size() const noexcept override { return vocabulary_.size(); }
  std::optional<int32_t> find(std::string_view text) const override { return vocabulary_.find(text); }
  std::string_view token(int32_t id) const noexcept override { return vocabulary_.token(id); }
  /// O(n) times the length of the longest token.
  void encode_word(std::string_view word, ModelScratch& scratch, std::vector<int32_t>& ids) const override;

 private:
  /// The node behind `node` by `byte`; -1: there is none.
  int32_t child(int32_t node, char byte) const noexcept;
  void find_path(std::string_view word, std::vector<ModelScratch::PathNode>& path) const;
  void put_unknown(std::string_view text, std::vector<int32_t>& ids) const;

  Vocabulary vocabulary_;
  std::vector<double> scores_;
  PairMap trie_;                   // of edges: the next node is `result`
  std::vector<int32_t> token_at_;  // by node; -1: no token ends there
  int32_t unknown_id_;
  double unknown_score_;
  std::vector<int32_t> byte_tokens_;  // empty: no fallback to bytes
};

}  // namespace caravan
