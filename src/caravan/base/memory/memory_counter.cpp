#include "caravan/base/memory/memory_counter.h"

#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

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

void MemoryCounter::add(int64_t bytes, MemoryKind kind, Tier tier) noexcept {
  Counts& counts = of(tier);
  counts.of(kind).fetch_add(bytes, kRelaxed);
  const int64_t now = counts.live.fetch_add(bytes, kRelaxed) + bytes;
  int64_t peak = counts.peak.load(kRelaxed);
  while (now > peak) {
    if (!counts.peak.compare_exchange_weak(peak, now, kRelaxed)) continue;
    counts.note_peak();
    return;
  }
}

void MemoryCounter::remove(int64_t bytes, MemoryKind kind, Tier tier) noexcept {
  of(tier).of(kind).fetch_sub(bytes, kRelaxed);
  of(tier).live.fetch_sub(bytes, kRelaxed);
}

void MemoryCounter::Counts::note_peak() noexcept {
  for (size_t i = 0; i < kNumMemoryKinds; ++i) at_peak[i].store(by_kind[i].load(kRelaxed), kRelaxed);
}

std::array<int64_t, kNumMemoryKinds> MemoryCounter::at_peak(Tier tier) const noexcept {
  std::array<int64_t, kNumMemoryKinds> all{};
  for (size_t i = 0; i < kNumMemoryKinds; ++i) all[i] = load(of(tier).at_peak[i]);
  return all;
}

void MemoryCounter::reset_peak() noexcept {
  for (Counts& counts : tiers_) {
    counts.peak.store(load(counts.live), kRelaxed);
    counts.note_peak();
  }
}

void MemoryCounter::count_moved(const Moved& more) noexcept {
  const std::array<int64_t, 4> numbers{more.to_host, more.from_host, more.to_disk, more.from_disk};
  for (size_t i = 0; i < numbers.size(); ++i) moved_[i].fetch_add(numbers[i], kRelaxed);
}

MemoryCounter::Moved MemoryCounter::moved() const noexcept {
  return {load(moved_[0]), load(moved_[1]), load(moved_[2]), load(moved_[3])};
}

void MemoryCounter::set_event(std::string event) {
  const std::lock_guard lock(mutex_);
  event_ = std::move(event);
}

void MemoryCounter::check_budget(int64_t bytes, MemoryKind kind) const {
  const int64_t budget = load(budget_);
  if (budget <= 0 || live_bytes() + bytes <= budget) return;
  static constexpr std::array<std::string_view, kNumMemoryKinds> kNames{"activations or workspace", "parameters",
                                                                        "gradients", "optimizer state", "buffers"};
  const std::lock_guard lock(mutex_);
  throw ResourceError(
      {.op = "device",
       .subject = event_.empty() ? "allocate" : event_,
       .fact = fmt::format("{} of {} do not fit: {} of the budget of {} are in use", format_bytes(bytes),
                           kNames[static_cast<size_t>(kind)], format_bytes(live_bytes()), format_bytes(budget)),
       .action = "raise offload.device_budget, offload more, or use smaller micro-batches"});
}

MemoryCounter& MemoryCounter::current() noexcept { return innermost != nullptr ? *innermost : process_counter(); }

MemoryScope::MemoryScope(MemoryCounter& counter) noexcept : outer_(innermost) { innermost = &counter; }

MemoryScope::~MemoryScope() { innermost = outer_; }

MemoryKindScope::MemoryKindScope(MemoryKind kind) noexcept : outer_(innermost_kind) { innermost_kind = kind; }

MemoryKindScope::~MemoryKindScope() { innermost_kind = outer_; }

MemoryCharge MemoryCharge::take(int64_t bytes, Tier tier) {
  const MemoryCharge charge{&MemoryCounter::current(), bytes, innermost_kind, tier};
  if (tier == Tier::device) charge.counter->check_budget(bytes, charge.kind);
  charge.counter->add(bytes, charge.kind, tier);
  return charge;
}

}  // namespace caravan
