#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace caravan::shared {

/// A futex on which one rank sleeps until a peer that has published something rings it. Lives in shared memory; zeroed
/// memory is its initial state. One sleeper, any number of ringers.
///
/// Note [no lost wake-up]: the ringer publishes a flag and then reads whether the rank is asleep; the sleeper marks
/// itself asleep and then reads the flags once more. At least one of them must see the other, so each side needs a full
/// barrier in between. For the flags of every round and message, which `publish` stores, the sleeper issues the barrier
/// of both: membarrier(2) runs one on every core where a process of the world is running, which takes microseconds, but
/// only before a sleep. A process where the kernel has no membarrier fences when it publishes. All other flags that can
/// end a wait are rare and are stored with seq_cst.
class Doorbell {
 public:
  /// Once in each process, before it publishes anything.
  static void set_up() noexcept;

  static void publish(std::atomic<uint64_t>& flag, uint64_t value) noexcept {
    flag.store(value, std::memory_order_release);
    if (sleeper_has_barrier.load(std::memory_order_relaxed)) {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      std::atomic_thread_fence(std::memory_order_seq_cst);
    }
  }

  /// After `publish`, or a store with seq_cst.
  void ring() noexcept {
    if (asleep_.load(std::memory_order_seq_cst) != 0) wake_up();
  }

  /// Announces sleep. The caller then polls once more and calls either `cancel`, or `sleep` with the returned value.
  uint32_t announce() noexcept;
  void cancel() noexcept { asleep_.store(0, std::memory_order_relaxed); }
  /// Sleeps until rung since `announce`, or for `at_most`.
  void sleep(uint32_t announced, std::chrono::nanoseconds at_most) noexcept;

 private:
  void wake_up() noexcept;

  inline static std::atomic<bool> sleeper_has_barrier{false};  // of this process

  std::atomic<uint32_t> rings_;
  std::atomic<uint32_t> asleep_;
};

}  // namespace caravan::shared
