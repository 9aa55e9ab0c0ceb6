#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "caravan/base/json_reader.h"
#include "caravan/data/tokenizer/added_tokens.h"
#include "caravan/data/tokenizer/bpe_model.h"
#include "caravan/data/tokenizer/normalizer.h"
#include "caravan/data/tokenizer/post_processor.h"
#include "caravan/data/tokenizer/pre_tokenizer.h"
#include "caravan/data/tokenizer/text_decoder.h"
#include "caravan/data/tokenizer/token_model.h"

namespace caravan {

inline constexpr int64_t kLargestTokenId = std::numeric_limits<int32_t>::max() - 1;

/// The content of a tokenizer.json file, as far as it determines ids and texts.
struct TokenizerParts {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<TokenModel> model;
  std::vector<AddedToken> added_tokens;
  PostProcessor post_processor;
  TextDecoder decoder;
};

/// Reads a Hugging Face tokenizer.json. `file` names it in errors. Throws DataError with the JSON path for every
/// unsupported setting that could change an id or a text; none is ignored.
TokenizerParts read_tokenizer_json(std::string_view json, std::string_view file);

// The parts of the file.
Normalizer read_normalizer(const JsonReader& json);
PreTokenizer read_pre_tokenizer(const JsonReader& json);
/// A byte-level model takes the bytes of words: `pre_tokenizer` then leaves them.
std::unique_ptr<TokenModel> read_model(const JsonReader& json, PreTokenizer& pre_tokenizer);
PostProcessor read_post_processor(const JsonReader& json, int64_t vocab_size);
TextDecoder read_decoder(const JsonReader& json);

// Settings that occur in several parts.
struct Metaspace {
  std::string mark;
  PrependScheme scheme = PrependScheme::always;
  bool splits = true;
};
Metaspace read_metaspace_settings(const JsonReader& json);
/// {"Regex": ..} or {"String": ..}: a pattern, or a text, which is not empty.
std::pair<std::optional<Regex>, std::string> read_replaced(const JsonReader& json);
Regex read_pattern(const JsonReader& json);
/// A string of one character.
std::string read_character(const JsonReader& json);

struct WrittenTokenizer {
  std::vector<std::string> tokens;  ///< by id, as bytes; special tokens as text
  std::vector<MergeTable::Merge> merges;
  std::vector<int32_t> special_ids{};  ///< of tokens
  std::optional<int32_t> before{};     ///< special token before a text, or a pair
  std::optional<int32_t> after{};      ///< after a text, and after each of a pair
  bool cuts_words = true;              ///< splits by GPT-2's pattern; else a text is one word
};
/// A tokenizer.json that `tokenizers` and `transformers` load.
std::string write_tokenizer_json(const WrittenTokenizer& tokenizer);

}  // namespace caravan
