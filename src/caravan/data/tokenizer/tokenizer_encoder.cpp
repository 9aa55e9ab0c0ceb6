#include "caravan/data/tokenizer/tokenizer_encoder.h"

#include "caravan/data/unicode/nfc.h"

namespace caravan {
namespace {

constexpr size_t kFlushFrom = size_t{1} << 16;   // ids
constexpr size_t kPiece = size_t{1} << 16;       // bytes
constexpr size_t kLongestKnown = 64;             // bytes; longer words seldom occur twice
constexpr size_t kKnownWords = size_t{1} << 16;  // more than the distinct words of a long book
constexpr size_t kKnownIds = size_t{1} << 20;

std::vector<AddedToken> of_kind(const TokenizerParts& parts, bool is_normalized) {
  std::vector<AddedToken> tokens;
  std::string scratch;
  for (const AddedToken& token : parts.added_tokens) {
    if (token.is_normalized != is_normalized) continue;
    tokens.push_back(token);
    if (is_normalized && parts.is_nfc) tokens.back().content = to_nfc(token.content, scratch);
  }
  return tokens;
}

}  // namespace

TokenizerTables::TokenizerTables(TokenizerParts parts_)
    : parts(std::move(parts_)), raw_tokens(of_kind(parts, false)), normalized_tokens(of_kind(parts, true)) {}

void TokenizerEncoder::encode(std::string_view text) {
  if (tables_.raw_tokens.is_empty()) {
    encode_between_raw_tokens(text);
    return;
  }
  for (const AddedTokenFinder::Stretch& stretch : tables_.raw_tokens.split(text)) {
    if (stretch.id) {
      ids_.push_back(*stretch.id);
    } else {
      encode_between_raw_tokens(stretch.text);
    }
  }
}

void TokenizerEncoder::encode_between_raw_tokens(std::string_view text) {
  if (tables_.parts.is_nfc) text = to_nfc(text, normalized_);
  for (const AddedTokenFinder::Stretch& stretch : tables_.normalized_tokens.split(text)) {
    if (stretch.id) {
      ids_.push_back(*stretch.id);
    } else {
      tables_.parts.pre_tokenizer.split(stretch.text, words_, *this);
    }
  }
}

void TokenizerEncoder::word(std::string_view word) {
  // A tokenizer of bytes takes a text for one word. Its bytes are encoded independently, so it can be split anywhere.
  if (tables_.parts.model.has_no_merges()) {
    for (; word.size() > kPiece; word.remove_prefix(kPiece)) encode_piece(word.substr(0, kPiece));
  }
  encode_piece(word);
}

void TokenizerEncoder::encode_piece(std::string_view word) {
  if (word.size() > kLongestKnown) {
    tables_.parts.model.encode_word(word, merging_, ids_);
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
  tables_.parts.model.encode_word(word, merging_, ids_);
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
