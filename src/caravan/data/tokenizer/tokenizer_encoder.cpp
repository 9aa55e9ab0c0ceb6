#include "caravan/data/tokenizer/tokenizer_encoder.h"

#include "caravan/data/unicode/utf8.h"

namespace caravan {
namespace {

constexpr size_t kFlushFrom = size_t{1} << 16;   // ids
constexpr size_t kLongestKnown = 64;             // bytes; longer words seldom occur twice
constexpr size_t kKnownWords = size_t{1} << 16;  // more than the distinct words of a long book
constexpr size_t kKnownIds = size_t{1} << 20;

std::vector<AddedToken> of_kind(const TokenizerParts& parts, bool is_normalized) {
  std::vector<AddedToken> tokens;
  Normalizer::Scratch scratch;
  for (const AddedToken& token : parts.added_tokens) {
    if (token.is_normalized != is_normalized) continue;
    tokens.push_back(token);
    if (is_normalized) tokens.back().content = parts.normalizer.apply({token.content}, scratch).text;
  }
  return tokens;
}

}  // namespace

TokenizerTables::TokenizerTables(TokenizerParts parts_)
    : parts(std::move(parts_)),
      raw_tokens(of_kind(parts, false)),
      normalized_tokens(of_kind(parts, true)),
      cuts_words(parts.model->cuts_words()) {}

void TokenizerEncoder::encode(std::string_view text) {
  if (text.empty()) return;
  const size_t head = utf8_step(text).length;
  if (tables_.raw_tokens.is_empty()) {
    encode_between_raw_tokens({text, head});
    return;
  }
  for (const AddedTokenFinder::Stretch& stretch : tables_.raw_tokens.split(text)) {
    if (stretch.id) {
      ids_.push_back(*stretch.id);
    } else {
      encode_between_raw_tokens({stretch.text, stretch.text.data() == text.data() ? head : 0});
    }
  }
}

void TokenizerEncoder::encode_between_raw_tokens(NormalizedText text) {
  text = tables_.parts.normalizer.apply(text, normalizing_);
  for (const AddedTokenFinder::Stretch& stretch : tables_.normalized_tokens.split(text.text)) {
    if (stretch.id) {
      ids_.push_back(*stretch.id);
    } else {
      const auto begin = static_cast<size_t>(stretch.text.data() - text.text.data());
      tables_.parts.pre_tokenizer.split({stretch.text, text.head > begin ? text.head - begin : 0}, words_, *this);
    }
  }
}

void TokenizerEncoder::word(std::string_view word) {
  while (tables_.cuts_words) {
    const size_t part = tables_.parts.model->first_part(word);
    if (part == word.size()) break;
    encode_piece(word.substr(0, part));
    word.remove_prefix(part);
  }
  encode_piece(word);
}

void TokenizerEncoder::encode_piece(std::string_view word) {
  if (word.size() > kLongestKnown) {
    tables_.parts.model->encode_word(word, merging_, ids_);
  } else if (const auto found = known_.find(word); found != known_.end()) {
    const Range range = found->second;
    ids_.insert(ids_.end(), known_ids_.begin() + range.begin, known_ids_.begin() + range.begin + range.count);
  } else {
    encode_and_remember(word);
  }
  bytes_ += static_cast<int64_t>(word.size());
  if (sink_ && ids_.size() >= kFlushFrom) flush();
}

void TokenizerEncoder::encode_and_remember(std::string_view word) {
  const size_t begin = ids_.size();
  tables_.parts.model->encode_word(word, merging_, ids_);
  if (known_.size() >= kKnownWords || known_ids_.size() >= kKnownIds) {
    known_.clear();
    known_ids_.clear();
  }
  known_.emplace(word, Range{static_cast<uint32_t>(known_ids_.size()), static_cast<uint32_t>(ids_.size() - begin)});
  known_ids_.insert(known_ids_.end(), ids_.begin() + static_cast<int64_t>(begin), ids_.end());
}

void TokenizerEncoder::flush() {
  if (!ids_.empty()) sink_(ids_);
  ids_.clear();
  observer_.advance(bytes_);
  bytes_ = 0;
}

}  // namespace caravan
