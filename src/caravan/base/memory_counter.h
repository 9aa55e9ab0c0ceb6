#pragma once

#include <atomic>
#include <cstdint>

namespace caravan {

/// Current and peak bytes of tensor memory of one rank. Thread-safe: a block may be freed on another thread.
class MemoryCounter {
 public:
  void add(int64_t bytes) noexcept;
  void remove(int64_t bytes) noexcept { live_.fetch_sub(bytes, std::memory_order_relaxed); }

  int64_t live_bytes() const noexcept { return live_.load(std::memory_order_relaxed); }
  int64_t peak_bytes() const noexcept { return peak_.load(std::memory_order_relaxed); }
  /// Resets the peak to the current bytes.
  void reset_peak() noexcept { peak_.store(live_bytes(), std::memory_order_relaxed); }

  /// The counter that allocations of the calling thread are charged to: the innermost MemoryScope's, else the
  /// process's.
  static MemoryCounter& current() noexcept;

 private:
  std::atomic<int64_t> live_{0};
  std::atomic<int64_t> peak_{0};
};

/// Charges the allocations of this thread to `counter` during its lifetime; ranks that are threads make one each.
/// `counter` must outlive every block charged to it, so such ranks keep theirs until the process ends (see
/// comm/shared/thread_ranks.h).
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
