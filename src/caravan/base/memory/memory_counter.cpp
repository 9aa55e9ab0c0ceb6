#include "caravan/base/memory/memory_counter.h"

namespace caravan {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

MemoryCounter& process_counter() noexcept {
  static MemoryCounter* counter = new MemoryCounter;  // never destroyed: blocks are freed after main() too
  return *counter;
}

thread_local MemoryCounter* innermost = nullptr;
thread_local MemoryKind innermost_kind = MemoryKind::other;

}  // namespace

void MemoryCounter::add(int64_t bytes, MemoryKind kind) noexcept {
  of(kind).fetch_add(bytes, kRelaxed);
  const int64_t now = live_.fetch_add(bytes, kRelaxed) + bytes;
  int64_t peak = peak_.load(kRelaxed);
  while (now > peak) {
    if (!peak_.compare_exchange_weak(peak, now, kRelaxed)) continue;
    note_peak();
    return;
  }
}

void MemoryCounter::remove(int64_t bytes, MemoryKind kind) noexcept {
  of(kind).fetch_sub(bytes, kRelaxed);
  live_.fetch_sub(bytes, kRelaxed);
}

void MemoryCounter::note_peak() noexcept {
  for (size_t i = 0; i < kNumMemoryKinds; ++i) at_peak_[i].store(by_kind_[i].load(kRelaxed), kRelaxed);
}

std::array<int64_t, kNumMemoryKinds> MemoryCounter::at_peak() const noexcept {
  std::array<int64_t, kNumMemoryKinds> all{};
  for (size_t i = 0; i < kNumMemoryKinds; ++i) all[i] = at_peak_[i].load(kRelaxed);
  return all;
}

void MemoryCounter::reset_peak() noexcept {
  peak_.store(live_bytes(), kRelaxed);
  note_peak();
}

MemoryCounter& MemoryCounter::current() noexcept { return innermost != nullptr ? *innermost : process_counter(); }

MemoryScope::MemoryScope(MemoryCounter& counter) noexcept : outer_(innermost) { innermost = &counter; }

MemoryScope::~MemoryScope() { innermost = outer_; }

MemoryKindScope::MemoryKindScope(MemoryKind kind) noexcept : outer_(innermost_kind) { innermost_kind = kind; }

MemoryKindScope::~MemoryKindScope() { innermost_kind = outer_; }

MemoryCharge MemoryCharge::take(int64_t bytes) noexcept {
  const MemoryCharge charge{&MemoryCounter::current(), bytes, innermost_kind};
  charge.counter->add(bytes, charge.kind);
  return charge;
}

}  // namespace caravan
