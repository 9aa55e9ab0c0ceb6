#include "caravan/data/tokenizer/bpe_model.h"

#include <algorithm>
#include <functional>
#include <limits>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/data/tokenizer/byte_alphabet.h"

namespace caravan {
namespace {

constexpr int32_t kGone = -1;
constexpr uint32_t kNoSymbol = std::numeric_limits<uint32_t>::max();
constexpr int32_t kNoToken = -1;

using Symbol = BpeModel::Scratch::Symbol;

/// Merges the symbols of one word: pairs are queued by rank, then by position, as BPE requires ("best pair first, from
/// the left").
class WordMerger {
 public:
  WordMerger(const PairMap& merges, BpeModel::Scratch& scratch)
      : merges_(merges), symbols_(scratch.symbols), initial_(scratch.initial), heap_(scratch.heap) {}

  void run(const std::vector<int32_t>& ids) {
    start(ids);
    size_t cursor = 0;
    while (cursor < initial_.size() || !heap_.empty()) {
      // The initial pairs are sorted once; only pairs created by merging go through the heap.
      if (heap_.empty() || (cursor < initial_.size() && initial_[cursor] < heap_.front())) {
        merge_at(initial_[cursor++]);
      } else {
        std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
        const uint64_t entry = heap_.back();
        heap_.pop_back();
        merge_at(entry);
      }
    }
  }

 private:
  static uint64_t entry(uint32_t rank, uint32_t place) { return static_cast<uint64_t>(rank) << 32 | place; }

  void start(const std::vector<int32_t>& ids) {
    const auto count = static_cast<uint32_t>(ids.size());
    symbols_.clear();
    initial_.clear();
    heap_.clear();
    for (uint32_t i = 0; i < count; ++i) {
      symbols_.push_back({ids[i], i == 0 ? kNoSymbol : i - 1, i + 1 == count ? kNoSymbol : i + 1});
      if (i + 1 == count) break;
      if (const auto* merge = merges_.find(ids[i], ids[i + 1])) initial_.push_back(entry(merge->rank, i));
    }
    std::sort(initial_.begin(), initial_.end());
  }

  void merge_at(uint64_t waiting) {
    const auto place = static_cast<uint32_t>(waiting);
    Symbol& left = symbols_[place];
    if (left.id == kGone || left.next == kNoSymbol) return;
    Symbol& right = symbols_[left.next];
    const auto* merge = merges_.find(left.id, right.id);
    if (merge == nullptr || merge->rank != waiting >> 32)
      return;  // stale: one of the two has merged with another symbol
    left.id = merge->result;
    right.id = kGone;
    left.next = right.next;
    if (right.next != kNoSymbol) symbols_[right.next].previous = place;
    if (left.previous != kNoSymbol) push_pair(left.previous, place);
    if (left.next != kNoSymbol) push_pair(place, left.next);
  }

  void push_pair(uint32_t place, uint32_t next) {
    const auto* merge = merges_.find(symbols_[place].id, symbols_[next].id);
    if (merge == nullptr) return;
    heap_.push_back(entry(merge->rank, place));
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  const PairMap& merges_;
  std::vector<Symbol>& symbols_;
  std::vector<uint64_t>& initial_;
  std::vector<uint64_t>& heap_;
};

}  // namespace

BpeModel::BpeModel(Parts parts)
    : bytes_(parts.tokens.size()),
      merges_(parts.merges.size()),
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
  uint32_t rank = 0;
  for (const Merge& merge : parts.merges) merges_.set(merge.left, merge.right, {rank++, merge.result});
}

std::optional<int32_t> BpeModel::find(std::string_view text) const {
  const std::optional<std::string> bytes = ByteAlphabet::instance().decode(text);
  const auto& map = bytes ? by_bytes_ : outside_alphabet_;
  const auto found = map.find(bytes ? std::string_view(*bytes) : text);
  return found == map.end() ? std::nullopt : std::optional(found->second);
}

bool BpeModel::has_all_bytes() const noexcept {
  return std::none_of(byte_ids_.begin(), byte_ids_.end(), [](int32_t id) { return id == kNoToken; });
}

bool BpeModel::has_no_merges() const noexcept { return merges_.is_empty() && !ignores_merges_ && has_all_bytes(); }

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

void BpeModel::encode_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
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
  if (word.size() >= kNoSymbol) {
    throw DataError({.op = "tokenizer",
                     .subject = "a word",
                     .fact = fmt::format("has {} bytes, the limit of one word is {}", word.size(), kNoSymbol - 1),
                     .action = "break the text into lines or words"});
  }
  scratch.ids.clear();
  split_to_bytes(word, scratch.ids);
  WordMerger(merges_, scratch).run(scratch.ids);
  for (const Symbol& symbol : scratch.symbols) {
    if (symbol.id != kGone) ids.push_back(symbol.id);
  }
}

}  // namespace caravan
