#include "caravan/data/tokenizer/character_bpe.h"

#include <algorithm>

#include "caravan/data/unicode/utf8.h"

namespace caravan {
namespace {

constexpr std::string_view kSpaceMark = "\u2581";

}  // namespace

CharacterBpe::CharacterBpe(BpeParts parts)
    : vocabulary_(std::move(parts.tokens)),
      merges_(parts.merges),
      byte_tokens_(parts.falls_back_to_bytes ? vocabulary_.byte_tokens() : std::vector<int32_t>()),
      prefix_(parts.continuing_prefix),
      suffix_(parts.end_suffix),
      ignores_merges_(parts.ignores_merges),
      fuses_unknown_(parts.fuses_unknown),
      unknown_id_(parts.unknown_id),
      cuts_words_(can_cut(parts)) {}

bool CharacterBpe::can_cut(const BpeParts& parts) const {
  if (parts.ignores_merges || !prefix_.empty() || !suffix_.empty() || !vocabulary_.find(kSpaceMark)) return false;
  const bool has_bytes = !byte_tokens_.empty() &&
                         std::none_of(byte_tokens_.begin(), byte_tokens_.end(), [](int32_t id) { return id < 0; });
  if (!unknown_id_ && !has_bytes) return false;  // what surrounds a character that is left out may be merged
  return std::none_of(parts.merges.begin(), parts.merges.end(), [&](const MergeTable::Merge& merge) {
    return !vocabulary_.token(merge.left).ends_with(kSpaceMark) &&
           vocabulary_.token(merge.right).starts_with(kSpaceMark);
  });
}

size_t CharacterBpe::first_part(std::string_view word) const {
  if (!cuts_words_) return word.size();
  for (size_t at = word.find(kSpaceMark, 1); at < word.size(); at = word.find(kSpaceMark, at + 1)) {
    if (!word.substr(0, at).ends_with(kSpaceMark)) return at;
  }
  return word.size();
}

/// As `tokenizers` does it: an unknown character is put down only when the next known or unknown one comes, so bytes
/// come before it.
void CharacterBpe::split(std::string_view word, ModelScratch& scratch) const {
  bool is_unknown_due = false;
  const auto put_unknown = [&] {
    if (is_unknown_due) scratch.ids.push_back(*unknown_id_);
    is_unknown_due = false;
  };
  for (size_t at = 0; at < word.size();) {
    const size_t end = at + utf8_step(word.substr(at)).length;
    std::string_view symbol = word.substr(at, end - at);
    if ((at > 0 && !prefix_.empty()) || (end == word.size() && !suffix_.empty())) {
      scratch.text.assign(at > 0 ? prefix_ : "").append(symbol).append(end == word.size() ? suffix_ : "");
      symbol = scratch.text;
    }
    at = end;
    if (const auto id = vocabulary_.find(symbol)) {
      put_unknown();
      scratch.ids.push_back(*id);
      continue;
    }
    const auto id_of = [this](char byte) { return byte_tokens_[static_cast<unsigned char>(byte)]; };
    if (!byte_tokens_.empty() && std::all_of(symbol.begin(), symbol.end(), [&](char c) { return id_of(c) >= 0; })) {
      for (const char byte : symbol) scratch.ids.push_back(id_of(byte));
    } else if (unknown_id_) {
      if (!fuses_unknown_) put_unknown();
      is_unknown_due = true;
    }
  }
  put_unknown();
}

void CharacterBpe::encode_word(std::string_view word, ModelScratch& scratch, std::vector<int32_t>& ids) const {
  if (ignores_merges_) {
    if (const auto id = vocabulary_.find(word)) {
      ids.push_back(*id);
      return;
    }
  }
  check_word_size(word);
  scratch.ids.clear();
  split(word, scratch);
  WordMerger(merges_, scratch).run(scratch.ids, ids);
}

}  // namespace caravan
