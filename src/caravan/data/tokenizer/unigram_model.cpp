#include "caravan/data/tokenizer/unigram_model.h"

#include <algorithm>
#include <limits>

#include "caravan/data/unicode/utf8.h"

namespace caravan {
namespace {

constexpr int64_t kUnreached = -1;
constexpr double kUnknownPenalty = 10.0;  // below the score of the least likely token, as in SentencePiece

/// The key of the edge from `node` by `byte`. Its low bits differ, which PairMap hashes best.
struct Edge {
  Edge(int32_t node, char byte) {
    constexpr int kBits = 31;
    const int64_t key = static_cast<int64_t>(node) << 8 | static_cast<unsigned char>(byte);
    left = static_cast<int32_t>(key >> kBits);
    right = static_cast<int32_t>(key & std::numeric_limits<int32_t>::max());
  }
  int32_t left;
  int32_t right;
};

std::vector<std::optional<std::string>> all_used(const std::vector<std::string>& tokens) {
  return {tokens.begin(), tokens.end()};
}

/// Nodes of a trie of `tokens`, without its root.
size_t count_nodes(const std::vector<std::string>& tokens) {
  std::vector<std::string_view> sorted(tokens.begin(), tokens.end());
  std::sort(sorted.begin(), sorted.end());
  size_t count = 0;
  std::string_view previous;
  for (const std::string_view token : sorted) {
    const auto common = std::mismatch(token.begin(), token.end(), previous.begin(), previous.end()).first;
    count += static_cast<size_t>(token.end() - common);
    previous = token;
  }
  return count;
}

}  // namespace

UnigramModel::UnigramModel(Parts parts)
    : vocabulary_(all_used(parts.tokens)),
      scores_(std::move(parts.scores)),
      trie_(count_nodes(parts.tokens)),
      token_at_(1, -1),
      unknown_id_(parts.unknown_id),
      unknown_score_(std::numeric_limits<double>::infinity()) {
  for (const std::string& token : parts.tokens) {
    int32_t node = 0;
    for (const char byte : token) {
      int32_t next = child(node, byte);
      if (next < 0) {
        next = static_cast<int32_t>(token_at_.size());
        token_at_.push_back(-1);
        const Edge edge(node, byte);
        trie_.set(edge.left, edge.right, {0, next});
      }
      node = next;
    }
    token_at_[static_cast<size_t>(node)] = *vocabulary_.find(token);
  }
  for (const double score : scores_) unknown_score_ = std::min(unknown_score_, score);
  unknown_score_ -= kUnknownPenalty;
  if (parts.falls_back_to_bytes) byte_tokens_ = vocabulary_.byte_tokens();
}

int32_t UnigramModel::child(int32_t node, char byte) const noexcept {
  const Edge edge(node, byte);
  const PairMap::Merge* found = trie_.find(edge.left, edge.right);
  return found == nullptr ? -1 : found->result;
}

void UnigramModel::find_path(std::string_view word, std::vector<ModelScratch::PathNode>& path) const {
  path.assign(word.size() + 1, {0, kUnreached, 0});
  for (size_t begin = 0; begin < word.size();) {
    const double score = path[begin].score;
    const auto offer = [&](size_t end, double total, int32_t id) {
      ModelScratch::PathNode& node = path[end];
      if (node.begin == kUnreached || total > node.score) node = {total, static_cast<int64_t>(begin), id};
    };
    const size_t next = begin + utf8_step(word.substr(begin)).length;
    bool has_character = false;
    int32_t node = 0;
    for (size_t end = begin; end < word.size();) {
      node = child(node, word[end]);
      if (node < 0) break;
      ++end;
      const int32_t id = token_at_[static_cast<size_t>(node)];
      if (id < 0) continue;
      offer(end, scores_[static_cast<size_t>(id)] + score, id);
      has_character = has_character || end == next;
    }
    if (!has_character) offer(next, unknown_score_ + score, unknown_id_);
    begin = next;
  }
}

void UnigramModel::put_unknown(std::string_view text, std::vector<int32_t>& ids) const {
  const auto id_of = [this](char byte) { return byte_tokens_[static_cast<unsigned char>(byte)]; };
  if (const auto id = vocabulary_.find(text)) {
    ids.push_back(*id);
  } else if (!byte_tokens_.empty() && std::all_of(text.begin(), text.end(), [&](char c) { return id_of(c) >= 0; })) {
    for (const char byte : text) ids.push_back(id_of(byte));
  } else {
    ids.push_back(unknown_id_);
  }
}

void UnigramModel::encode_word(std::string_view word, ModelScratch& scratch, std::vector<int32_t>& ids) const {
  find_path(word, scratch.path);
  std::vector<ModelScratch::PathNode>& path = scratch.path;
  // The nodes on the best path, from the end, each with the end of its token as its `begin`.
  size_t count = 0;
  for (size_t end = word.size(); end > 0;) {
    const ModelScratch::PathNode node = path[end];
    path[path.size() - ++count] = {0, static_cast<int64_t>(end), node.id};
    end = static_cast<size_t>(node.begin);
  }
  size_t begin = 0;
  for (size_t at = path.size() - count; at < path.size(); ++at) {
    auto end = static_cast<size_t>(path[at].begin);
    if (path[at].id != unknown_id_) {
      ids.push_back(path[at].id);
    } else {
      while (at + 1 < path.size() && path[at + 1].id == unknown_id_) end = static_cast<size_t>(path[++at].begin);
      put_unknown(word.substr(begin, end - begin), ids);
    }
    begin = end;
  }
}

}  // namespace caravan
