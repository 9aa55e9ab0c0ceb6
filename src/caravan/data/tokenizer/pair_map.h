#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace caravan {

/// Maps a pair of token ids to the rank and the result of its merge. A flat hash table with linear probing, built once
/// and then only read. These lookups dominate the time of tokenization.
class PairMap {
 public:
  struct Merge {
    uint32_t rank;
    int32_t result;
  };

  explicit PairMap(size_t expected = 0) : slots_(std::bit_ceil(expected * 2 + 2)), mask_(slots_.size() - 1) {}

  bool is_empty() const noexcept { return count_ == 0; }

  /// Replaces the merge of a pair that exists. At most `expected` pairs.
  void set(int32_t left, int32_t right, Merge merge) noexcept {
    Slot& slot = slots_[find_slot(key(left, right))];
    count_ += slot.key == kNone ? 1 : 0;
    slot = {key(left, right), merge};
  }

  /// nullptr if the pair does not merge.
  const Merge* find(int32_t left, int32_t right) const noexcept {
    const Slot& slot = slots_[find_slot(key(left, right))];
    return slot.key == kNone ? nullptr : &slot.merge;
  }

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};
  struct Slot {
    uint64_t key = kNone;
    Merge merge{};
  };

  static uint64_t key(int32_t left, int32_t right) noexcept {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t find_slot(uint64_t key) const noexcept {
    size_t at = (key * 0x9E3779B97F4A7C15 >> 20) & mask_;
    while (slots_[at].key != key && slots_[at].key != kNone) at = (at + 1) & mask_;
    return at;
  }

  std::vector<Slot> slots_;
  size_t mask_;
  size_t count_ = 0;
};

}  // namespace caravan
