#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

namespace caravan::messages {

/// The ids of one rank's communicators. An id is part of every tag, so two communicators that share a pair of ranks
/// must not use the same one at the same time. MPIs may have as few as 32,768 tags: an id is reused once its
/// communicator is destroyed, provided that none of its messages can still be in flight.
class TagIds {
 public:
  static constexpr int kWorld = 0;

  /// What this rank sends the others before a split: the least id above all ids that it ever used, then, within
  /// `words`, a bit for each id from 0 on that is in use.
  std::vector<int64_t> proposal(size_t words) const {
    std::vector<int64_t> proposal(words);
    proposal[0] = next_;
    for (const int id : used_) {
      const size_t word = 1 + static_cast<size_t>(id) / kBits;
      if (word < words) proposal[word] |= static_cast<int64_t>(uint64_t{1} << static_cast<size_t>(id) % kBits);
    }
    return proposal;
  }
  /// The least id that is free according to all of `proposals`, which have the same length.
  static int choose(std::span<const std::span<const int64_t>> proposals) {
    int64_t next = 0;
    for (const auto& proposal : proposals) next = std::max(next, proposal[0]);
    for (size_t word = 1; word < proposals.front().size(); ++word) {
      uint64_t used = 0;
      for (const auto& proposal : proposals) used |= static_cast<uint64_t>(proposal[word]);
      const int first_free = std::countr_one(used);
      if (first_free < kBits) return static_cast<int>((word - 1) * kBits) + first_free;
    }
    return static_cast<int>(next);
  }

  void take(int id) {
    used_.insert(id);
    next_ = std::max(next_, id + 1);
  }
  void release(int id) { used_.erase(id); }

 private:
  static constexpr int kBits = 64;

  std::set<int> used_{kWorld};
  int next_ = kWorld + 1;
};

}  // namespace caravan::messages
