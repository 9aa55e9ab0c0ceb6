#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

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

/// Current and peak bytes of tensor memory of one rank, in host memory and (without memory) on the meta device. Counts
/// requested bytes, not pages or cache size classes. Counts what torch allocates and what Communicator::allocate
/// returns; each rank counts an equal part of shared memory. Not counted: segments and staging buffers inside
/// communicators, workspaces of BLAS libraries, freed blocks in caches. Thread-safe: a block may be freed on another
/// thread.
class MemoryCounter {
 public:
  void add(int64_t bytes, MemoryKind kind = MemoryKind::other) noexcept;
  void remove(int64_t bytes, MemoryKind kind = MemoryKind::other) noexcept;

  int64_t live_bytes() const noexcept { return live_.load(std::memory_order_relaxed); }
  int64_t live_bytes(MemoryKind kind) const noexcept { return of(kind).load(std::memory_order_relaxed); }
  int64_t peak_bytes() const noexcept { return peak_.load(std::memory_order_relaxed); }
  /// Live bytes by kind when the peak was reached. They add up to it unless several threads allocate at that moment.
  std::array<int64_t, kNumMemoryKinds> at_peak() const noexcept;
  /// Resets the peak to the current bytes.
  void reset_peak() noexcept;

  /// The counter that allocations of the calling thread are charged to: the innermost MemoryScope's, else the
  /// process's.
  static MemoryCounter& current() noexcept;

 private:
  using Count = std::atomic<int64_t>;
  const Count& of(MemoryKind kind) const noexcept { return by_kind_[static_cast<size_t>(kind)]; }
  Count& of(MemoryKind kind) noexcept { return by_kind_[static_cast<size_t>(kind)]; }
  void note_peak() noexcept;

  Count live_{0};
  Count peak_{0};
  std::array<Count, kNumMemoryKinds> by_kind_{};
  std::array<Count, kNumMemoryKinds> at_peak_{};
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

  static MemoryCharge take(int64_t bytes) noexcept;
  void release() const noexcept { counter->remove(bytes, kind); }
};

}  // namespace caravan
