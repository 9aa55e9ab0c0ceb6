#pragma once

#include "caravan/data/tokenizer/bpe_model.h"

namespace caravan {

/// BPE over characters, as SentencePiece's and the first BPE vocabularies are.
class CharacterBpe final : public TokenModel {
 public:
  explicit CharacterBpe(BpeParts parts);

  int64_t size() const noexcept override { return vocabulary_.size(); }
  std::optional<int32_t> find(std::string_view text) const override { return vocabulary_.find(text); }
  std::string_view token(int32_t id) const noexcept override { return vocabulary_.token(id); }
  /// In vocabularies of SentencePiece "▁", which stands for a space, only begins tokens. Words can then be cut before
  /// it: they are whole texts in some of these tokenizers.
  bool cuts_words() const noexcept override { return cuts_words_; }
  size_t first_part(std::string_view word) const override;
  void encode_word(std::string_view word, ModelScratch& scratch, std::vector<int32_t>& ids) const override;

 private:
  bool can_cut(const BpeParts& parts) const;
  void split(std::string_view word, ModelScratch& scratch) const;

  Vocabulary vocabulary_;
  MergeTable merges_;
  std::vector<int32_t> byte_tokens_;  // empty: no fallback to bytes
  std::string prefix_;
  std::string suffix_;
  bool ignores_merges_;
  bool fuses_unknown_;
  std::optional<int32_t> unknown_id_;
  bool cuts_words_;
};

}  // namespace caravan
