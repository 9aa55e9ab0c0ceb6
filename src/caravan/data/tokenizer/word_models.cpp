#include "caravan/data/tokenizer/word_models.h"

#include <algorithm>

#include "caravan/data/unicode/utf8.h"

namespace caravan {

WordPieceModel::WordPieceModel(Parts parts)
    : vocabulary_(std::move(parts.tokens)), unknown_id_(parts.unknown_id), most_characters_(parts.most_characters) {
  for (int32_t id = 0; id < vocabulary_.size(); ++id) {
    const std::string_view token = vocabulary_.token(id);
    longest_ = std::max(longest_, token.size());
    if (!token.starts_with(parts.continuing_prefix)) continue;
    continuing_.insert_or_assign(token.substr(parts.continuing_prefix.size()), id);
  }
}

void WordPieceModel::encode_word(std::string_view word, ModelScratch& /*scratch*/, std::vector<int32_t>& ids) const {
  const size_t before = ids.size();
  const auto characters = std::count_if(word.begin(), word.end(), [](char byte) { return !is_utf8_tail(byte); });
  bool is_known = characters <= most_characters_;
  while (is_known && !word.empty()) {
    std::optional<int32_t> id;
    size_t size = std::min(word.size(), longest_);
    while (size < word.size() && is_utf8_tail(word[size])) --size;
    while (size > 0) {
      const std::string_view piece = word.substr(0, size);
      if (ids.size() == before) {
        id = vocabulary_.find(piece);
      } else if (const auto found = continuing_.find(piece); found != continuing_.end()) {
        id = found->second;
      }
      if (id) break;
      --size;
      while (size > 0 && is_utf8_tail(word[size])) --size;
    }
    is_known = id.has_value();
    if (!is_known) break;
    ids.push_back(*id);
    word.remove_prefix(size);
  }
  if (is_known) return;
  ids.resize(before);
  ids.push_back(unknown_id_);
}

}  // namespace caravan
