#include "caravan/data/tokenizer/bpe_model.h"

#include <algorithm>

#include "caravan/data/tokenizer/byte_alphabet.h"

namespace caravan {
namespace {

constexpr int32_t kNoToken = -1;
constexpr size_t kPart = size_t{1} << 16;  // bytes

}  // namespace

BpeModel::BpeModel(BpeParts parts)
    : bytes_(parts.tokens.size()),
      merges_(parts.merges),
      ignores_merges_(parts.ignores_merges),
      fuses_unknown_(parts.fuses_unknown),
      unknown_id_(parts.unknown_id) {
  byte_ids_.fill(kNoToken);
  by_bytes_.reserve(parts.tokens.size());
  for (size_t id = 0; id < parts.tokens.size(); ++id) {
    if (!parts.tokens[id]) continue;
    std::optional<std::string> bytes = ByteAlphabet::instance().decode(*parts.tokens[id]);
    const bool is_reachable = bytes.has_value();
    bytes_[id] = is_reachable ? std::move(*bytes) : std::move(*parts.tokens[id]);
    (is_reachable ? by_bytes_ : outside_alphabet_).emplace(bytes_[id], static_cast<int32_t>(id));
    if (is_reachable && bytes_[id].size() == 1) {
      byte_ids_[static_cast<unsigned char>(bytes_[id][0])] = static_cast<int32_t>(id);
    }
  }
}

std::optional<int32_t> BpeModel::find(std::string_view text) const {
  const std::optional<std::string> bytes = ByteAlphabet::instance().decode(text);
  const auto& map = bytes ? by_bytes_ : outside_alphabet_;
  const auto found = map.find(bytes ? std::string_view(*bytes) : text);
  return found == map.end() ? std::nullopt : std::optional(found->second);
}

std::string BpeModel::text(int32_t id) const {
  const auto outside = outside_alphabet_.find(token(id));
  const bool is_outside = outside != outside_alphabet_.end() && outside->second == id;
  return is_outside ? std::string(token(id)) : ByteAlphabet::instance().encode(token(id));
}

bool BpeModel::has_all_bytes() const noexcept {
  return std::none_of(byte_ids_.begin(), byte_ids_.end(), [](int32_t id) { return id == kNoToken; });
}

size_t BpeModel::first_part(std::string_view word) const {
  return cuts_words() ? std::min(kPart, word.size()) : word.size();
}

void BpeModel::split_to_bytes(std::string_view word, std::vector<int32_t>& ids) const {
  bool follows_unknown = false;
  for (const char byte : word) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(byte)];
    if (id != kNoToken) {
      ids.push_back(id);
    } else if (unknown_id_ && !(follows_unknown && fuses_unknown_)) {
      ids.push_back(*unknown_id_);
    }
    follows_unknown = id == kNoToken;
  }
}

void BpeModel::encode_word(std::string_view word, ModelScratch& scratch, std::vector<int32_t>& ids) const {
  if (ignores_merges_) {
    const auto found = by_bytes_.find(word);
    if (found != by_bytes_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  if (merges_.is_empty()) {
    split_to_bytes(word, ids);
    return;
  }
  check_word_size(word);
  scratch.ids.clear();
  split_to_bytes(word, scratch.ids);
  WordMerger(merges_, scratch).run(scratch.ids, ids);
}

}  // namespace caravan
