#include "caravan/data/tokenizer/token_model.h"

#include <limits>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {

Vocabulary::Vocabulary(std::vector<std::optional<std::string>> tokens) : tokens_(tokens.size()) {
  ids_.reserve(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id]) continue;
    tokens_[id] = std::move(*tokens[id]);
    ids_.insert_or_assign(tokens_[id], static_cast<int32_t>(id));
  }
}

std::vector<int32_t> Vocabulary::byte_tokens() const {
  std::vector<int32_t> ids(256);
  for (int byte = 0; byte < 256; ++byte)
    ids[static_cast<size_t>(byte)] = find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  return ids;
}

void check_word_size(std::string_view word) {
  constexpr size_t kMost = std::numeric_limits<uint32_t>::max() - size_t{1};
  if (word.size() <= kMost) return;
  throw DataError({.op = "tokenizer",
                   .subject = "a word",
                   .fact = fmt::format("has {} bytes, the limit of one word is {}", word.size(), kMost),
                   .action = "break the text into lines or words"});
}

}  // namespace caravan
