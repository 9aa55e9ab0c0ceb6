#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace caravan::shared {

/// Where one rank sleeps when nothing moves, and is woken by whoever publishes something for it. In shared memory,
/// zeroed at the start. One sleeper, any number of ringers.
///
/// Note [no lost wake-up]: the ringer publishes first and then looks whether the rank is asleep; the sleeper says that
/// it is asleep and then looks once more for what was published. Both sides use sequentially consistent operations for
/// all four, so at least one of them sees the other. Every flag that can end a wait is therefore stored with seq_cst.
class Doorbell {
 public:
  void ring() noexcept;

  /// Announces sleep; the caller then looks once more, and calls either `cancel` or `sleep` with what this returned.
  uint32_t announce() noexcept;
  void cancel() noexcept { asleep_.store(0, std::memory_order_relaxed); }
  /// Sleeps until rung since `announce`, or for `at_most`.
  void sleep(uint32_t announced, std::chrono::nanoseconds at_most) noexcept;

 private:
  std::atomic<uint32_t> rings_;
  std::atomic<uint32_t> asleep_;
};

}  // namespace caravan::shared
