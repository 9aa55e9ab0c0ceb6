#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/data/tokenizer/tokenizer_json.h"

namespace caravan {

/// The tables of a tokenizer, built once.
struct TokenizerTables {
  explicit TokenizerTables(TokenizerParts parts_);

  TokenizerParts parts;
  AddedTokenFinder raw_tokens;         ///< searched before the text is normalized
  AddedTokenFinder normalized_tokens;  ///< searched after
  bool cuts_words;                     ///< of the model
};

/// Encodes one text. Owns the memory for that and caches the ids of words. One thread.
class TokenizerEncoder final : private WordSink {
 public:
  /// The ids go to `sink` in pieces; with an empty sink they accumulate in `ids()`.
  TokenizerEncoder(const TokenizerTables& tables, const Tokenizer::Sink& sink, DataObserver& observer)
      : tables_(tables), sink_(sink), observer_(observer) {}

  /// `text` is well-formed UTF-8.
  void encode(std::string_view text);
  void flush();
  std::vector<int32_t>& ids() noexcept { return ids_; }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view word) const noexcept { return std::hash<std::string_view>()(word); }
  };
  struct Range {
    uint32_t begin;
    uint32_t count;
  };

  void encode_between_raw_tokens(NormalizedText text);
  void word(std::string_view word) override;
  void encode_piece(std::string_view word);
  void encode_and_remember(std::string_view word);

  const TokenizerTables& tables_;
  const Tokenizer::Sink& sink_;
  DataObserver& observer_;
  int64_t bytes_ = 0;  ///< encoded since the observer was last called
  std::vector<int32_t> ids_;
  Normalizer::Scratch normalizing_;
  PreTokenizer::Scratch words_;
  ModelScratch merging_;
  std::unordered_map<std::string, Range, Hash, std::equal_to<>> known_;
  std::vector<int32_t> known_ids_;
};

}  // namespace caravan
