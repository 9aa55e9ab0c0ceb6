#pragma once

#include <atomic>
#include <cstdint>

namespace caravan {

/// Bytes of tensor memory one rank holds now and held at most. Thread-safe: a block may be freed on another thread.
class MemoryCounter {
 public:
  void add(int64_t bytes) noexcept;
  void remove(int64_t bytes) noexcept { live_.fetch_sub(bytes, std::memory_order_relaxed); }

  int64_t live_bytes() const noexcept { return live_.load(std::memory_order_relaxed); }
  int64_t peak_bytes() const noexcept { return peak_.load(std::memory_order_relaxed); }
  /// The peak starts again from what is live now.
  void reset_peak() noexcept { peak_.store(live_bytes(), std::memory_order_relaxed); }

  /// The counter that allocations of the calling thread are charged to: the innermost MemoryScope's, else the
  /// process's.
  static MemoryCounter& current() noexcept;

 private:
  std::atomic<int64_t> live_{0};
  std::atomic<int64_t> peak_{0};
};

/// Charges this thread's allocations to `counter` while it lives: one per rank thread. `counter` must outlive every
/// block charged to it, so thread ranks keep theirs until the process ends (see comm/thread_ranks.h).
class MemoryScope {
 public:
  explicit MemoryScope(MemoryCounter& counter) noexcept;
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryCounter* outer_;
};

}  // namespace caravan
