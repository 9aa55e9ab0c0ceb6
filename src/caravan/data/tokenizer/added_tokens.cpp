#include "caravan/data/tokenizer/added_tokens.h"

#include <algorithm>

#include "caravan/data/unicode/character_sets.h"
#include "caravan/data/unicode/regex_dialect.h"
#include "caravan/data/unicode/utf8.h"

namespace caravan {
namespace {

size_t last_begin(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && is_utf8_tail(text[begin])) --begin;
  return begin;
}

size_t without_space_before(std::string_view text, size_t begin) {
  while (begin > 0) {
    const size_t last = last_begin(text, begin);
    if (!is_white_space(utf8_step(text.substr(last)).point)) break;
    begin = last;
  }
  return begin;
}

size_t without_space_behind(std::string_view text, size_t end) {
  while (end < text.size()) {
    const Utf8Step step = utf8_step(text.substr(end));
    if (!is_white_space(step.point)) break;
    end += step.length;
  }
  return end;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), nodes_(1) {
  for (const AddedToken& token : tokens_) {
    size_t node = 0;
    for (const char byte : token.content) {
      const auto [child, is_new] = nodes_[node].children.try_emplace(byte, nodes_.size());
      node = child->second;
      if (is_new) nodes_.emplace_back();
    }
    nodes_[node].token = &token;
  }
  if (std::any_of(tokens_.begin(), tokens_.end(), [](const AddedToken& token) { return token.is_single_word; })) {
    word_character_.emplace(Regex::pcre2("[" + word_members() + "]", "added_tokens"));
  }
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text) const {
  const AddedToken* longest = nullptr;
  size_t node = 0;
  for (const char byte : text) {
    const auto child = nodes_[node].children.find(byte);
    if (child == nodes_[node].children.end()) break;
    node = child->second;
    if (nodes_[node].token != nullptr) longest = nodes_[node].token;
  }
  return longest;
}

bool AddedTokenFinder::stands_alone(std::string_view text, size_t begin, size_t end) const {
  RegexScratch scratch;
  const auto is_word = [&](std::string_view character) {
    return RegexSearch(*word_character_, scratch, character).next().has_value();
  };
  if (begin > 0 && is_word(text.substr(last_begin(text, begin), begin - last_begin(text, begin)))) return false;
  return end == text.size() || !is_word(text.substr(end, utf8_step(text.substr(end)).length));
}

std::vector<AddedTokenFinder::Stretch> AddedTokenFinder::split(std::string_view text) const {
  std::vector<Stretch> stretches;
  size_t done = 0;
  const auto add_text_until = [&](size_t end) {
    if (done < end) stretches.push_back({text.substr(done, end - done), std::nullopt});
  };
  for (size_t at = 0; at < text.size() && !is_empty();) {
    const AddedToken* token = longest_at(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + token->content.size();
    at = end;
    if (token->is_single_word && !stands_alone(text, begin, end)) continue;
    if (token->strips_left) begin = std::max(without_space_before(text, begin), done);
    if (token->strips_right) end = without_space_behind(text, end);
    add_text_until(begin);
    stretches.push_back({text.substr(begin, end - begin), token->id});
    done = end;
  }
  add_text_until(text.size());
  return stretches;
}

}  // namespace caravan
