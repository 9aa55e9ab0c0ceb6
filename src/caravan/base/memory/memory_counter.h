#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "caravan/base/memory/tier.h"

namespace caravan {

/// What tensor memory is for, as set by the innermost MemoryKindScope:
///   parameters  flat values, their copies in another dtype, persistent unsharded parameters
///   gradients   flat gradients, persistent gradient sums
///   optimizer   moments, and state that a communication hook or another StateOwner keeps across steps
///   buffers     transient memory of units in flight: gathered parameters, gradient sums, messages,
///               versions of weights
///   other       everything else: activations, the batch, workspace
enum class MemoryKind : uint8_t { other, parameters, gradients, optimizer, buffers };
inline constexpr size_t kNumMemoryKinds = 5;

/// Current and peak bytes of tensor memory of one rank in each tier: in the device, which here is what torch allocates
/// and what Communicator::allocate returns, also (without memory) on the meta device; and in host memory and on disk
/// beyond it (memory/tiers.h). Counts requested bytes, not pages or cache size classes; each rank counts an equal part
/// of shared memory. Not counted: segments and staging buffers inside communicators, workspaces of BLAS libraries,
/// freed blocks in caches. Thread-safe: a block may be freed on another thread.
class MemoryCounter {
 public:
  void add(int64_t bytes, MemoryKind kind = MemoryKind::other, Tier tier = Tier::device) noexcept;
  void remove(int64_t bytes, MemoryKind kind = MemoryKind::other, Tier tier = Tier::device) noexcept;

  int64_t live_bytes(Tier tier = Tier::device) const noexcept { return load(of(tier).live); }
  int64_t live_bytes(MemoryKind kind, Tier tier = Tier::device) const noexcept { return load(of(tier).of(kind)); }
  int64_t peak_bytes(Tier tier = Tier::device) const noexcept { return load(of(tier).peak); }
  /// Live bytes by kind when the peak of the tier was reached. They add up to it unless several threads allocate at
  /// that moment.
  std::array<int64_t, kNumMemoryKinds> at_peak(Tier tier = Tier::device) const noexcept;
  /// Resets the peaks to the current bytes.
  void reset_peak() noexcept;

  /// Bytes that the rank has moved between its tiers; what goes to disk passes the host.
  struct Moved {
    int64_t to_host = 0;    ///< from the device
    int64_t from_host = 0;  ///< to the device
    int64_t to_disk = 0;
    int64_t from_disk = 0;
  };
  void count_moved(const Moved& more) noexcept;
  Moved moved() const noexcept;

  /// The most that the device may hold; 0: no limit. An allocation beyond it throws ResourceError naming the event.
  void set_budget(int64_t bytes) noexcept { budget_.store(bytes, std::memory_order_relaxed); }
  int64_t budget() const noexcept { return load(budget_); }
  /// What the rank does from here on, for that error: "forward of blocks.3, micro-batch 0".
  void set_event(std::string event);
  /// Throws if `bytes` more exceed the budget.
  void check_budget(int64_t bytes, MemoryKind kind) const;

  /// The counter that allocations of the calling thread are charged to: the innermost MemoryScope's, else the
  /// process's.
  static MemoryCounter& current() noexcept;

 private:
  using Count = std::atomic<int64_t>;
  struct Counts {
    Count live{0};
    Count peak{0};
    std::array<Count, kNumMemoryKinds> by_kind{};
    std::array<Count, kNumMemoryKinds> at_peak{};
    const Count& of(MemoryKind kind) const noexcept { return by_kind[static_cast<size_t>(kind)]; }
    Count& of(MemoryKind kind) noexcept { return by_kind[static_cast<size_t>(kind)]; }
    void note_peak() noexcept;
  };
  static int64_t load(const Count& count) noexcept { return count.load(std::memory_order_relaxed); }
  const Counts& of(Tier tier) const noexcept { return tiers_[static_cast<size_t>(tier)]; }
  Counts& of(Tier tier) noexcept { return tiers_[static_cast<size_t>(tier)]; }

  std::array<Counts, kNumTiers> tiers_{};
  std::array<Count, 4> moved_{};
  Count budget_{0};
  mutable std::mutex mutex_;
  std::string event_;
};

/// Charges the allocations of this thread to `counter` during its lifetime; ranks that are threads make one each.
/// `counter` must outlive every block charged to it, so such ranks keep theirs until the process ends (see
/// comm/backends/shared/thread_ranks.h).
class MemoryScope {
 public:
  explicit MemoryScope(MemoryCounter& counter) noexcept;
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryCounter* outer_;
};

/// Sets the kind of what this thread allocates during its lifetime; the innermost scope wins.
class MemoryKindScope {
 public:
  explicit MemoryKindScope(MemoryKind kind) noexcept;
  ~MemoryKindScope();
  MemoryKindScope(const MemoryKindScope&) = delete;
  MemoryKindScope& operator=(const MemoryKindScope&) = delete;

 private:
  MemoryKind outer_;
};

/// A block charged to the counter and kind of the thread that creates it, for code that allocates memory itself.
/// Released once, on any thread.
struct MemoryCharge {
  MemoryCounter* counter = nullptr;
  int64_t bytes = 0;
  MemoryKind kind = MemoryKind::other;
  Tier tier = Tier::device;

  /// Throws ResourceError if it exceeds the budget of the device.
  static MemoryCharge take(int64_t bytes, Tier tier = Tier::device);
  void release() const noexcept { counter->remove(bytes, kind, tier); }
};

}  // namespace caravan
