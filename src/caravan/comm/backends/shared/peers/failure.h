#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace caravan::shared {

/// The first failure of a group, in shared memory: written by the first rank that calls `publish`, read by all. Zeroed
/// memory is a record without failure.
class FailureRecord {
 public:
  /// True if this call was the first.
  bool publish(int rank, std::string_view text) noexcept;
  bool is_set() const noexcept { return state_.load(std::memory_order_acquire) == kReady; }
  /// Valid once is_set().
  int rank() const noexcept { return rank_; }
  std::string text() const { return text_.data(); }

 private:
  static constexpr uint32_t kReady = 2;  // 1: being written

  std::atomic<uint32_t> state_;
  int32_t rank_;
  std::array<char, 1016> text_;
};

}  // namespace caravan::shared
