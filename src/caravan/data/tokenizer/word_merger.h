#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "caravan/data/tokenizer/pair_map.h"
#include "caravan/data/tokenizer/token_model.h"

namespace caravan {

/// The merges of a BPE model by pair, and their results by rank.
class MergeTable {
 public:
  struct Merge {
    int32_t left;
    int32_t right;
    int32_t result;
  };
  /// `merges` by rank. If a pair occurs twice, the last one counts.
  explicit MergeTable(const std::vector<Merge>& merges) : pairs_(merges.size()) {
    results_.reserve(merges.size());
    for (const Merge& merge : merges) {
      pairs_.set(merge.left, merge.right, {static_cast<uint32_t>(results_.size()), merge.result});
      results_.push_back(merge.result);
    }
  }
  bool is_empty() const noexcept { return pairs_.is_empty(); }
  const PairMap::Merge* find(int32_t left, int32_t right) const noexcept { return pairs_.find(left, right); }
  int32_t result(uint64_t rank) const noexcept { return results_[rank]; }

 private:
  PairMap pairs_;
  std::vector<int32_t> results_;
};

/// Merges the symbols of one word: pairs are queued by rank, then by position, as BPE requires ("best pair first, from
/// the left").
class WordMerger {
 public:
  static constexpr int32_t kGone = -1;

  WordMerger(const MergeTable& merges, ModelScratch& scratch)
      : merges_(merges), symbols_(scratch.symbols), initial_(scratch.initial), heap_(scratch.heap) {}

  /// Appends what becomes of `symbols` to `ids`.
  void run(const std::vector<int32_t>& symbols, std::vector<int32_t>& ids) {
    start(symbols);
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
    for (const ModelScratch::Symbol& symbol : symbols_) {
      if (symbol.id != kGone) ids.push_back(symbol.id);
    }
  }

 private:
  static constexpr uint32_t kNoSymbol = std::numeric_limits<uint32_t>::max();

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
    ModelScratch::Symbol& left = symbols_[place];
    if (left.id == kGone || left.next == kNoSymbol) return;
    ModelScratch::Symbol& right = symbols_[left.next];
    const auto* merge = merges_.find(left.id, right.id);
    // Stale if one of the two has merged with another symbol. But a pair that gives the same token takes its place, as
    // in `tokenizers`: vocabularies of SentencePiece have several pairs for a token.
    if (merge == nullptr || merge->result != merges_.result(waiting >> 32)) return;
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

  const MergeTable& merges_;
  std::vector<ModelScratch::Symbol>& symbols_;
  std::vector<uint64_t>& initial_;
  std::vector<uint64_t>& heap_;
};

}  // namespace caravan
