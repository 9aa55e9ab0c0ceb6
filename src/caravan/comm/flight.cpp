#include "caravan/comm/flight.h"

#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace caravan {
namespace {

using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;

int64_t steady_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// All cores and processes of a host share the processor's counter, and reading it costs half of what the clock costs.
uint64_t ticks() noexcept {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return static_cast<uint64_t>(steady_ns());
#endif
}

/// Converts ticks to time, by reading both clocks twice.
class TickClock {
 public:
  static const TickClock& instance() {
    static const TickClock clock;
    return clock;
  }

  int64_t to_ns(uint64_t at) const {
    int64_t now_ns = steady_ns();
    uint64_t now_ticks = ticks();
    while (now_ns - begin_ns_ < kLeastNs) {  // a shorter interval is too inaccurate
      now_ns = steady_ns();
      now_ticks = ticks();
    }
    const double rate = static_cast<double>(now_ns - begin_ns_) / static_cast<double>(now_ticks - begin_ticks_);
    return now_ns - static_cast<int64_t>(static_cast<double>(static_cast<int64_t>(now_ticks - at)) * rate);
  }

 private:
  static constexpr int64_t kLeastNs = 1'000'000;
  int64_t begin_ns_ = steady_ns();
  uint64_t begin_ticks_ = ticks();
};

}  // namespace

std::string_view name(FlightState state) noexcept {
  switch (state) {
    case FlightState::started: return "started";
    case FlightState::done: return "done";
    case FlightState::failed: return "failed";
  }
  return "";
}

uint64_t FlightLog::begin(const Descriptor& call, const FlightGroup& group) noexcept {
  const Packed packed{call, group, ticks()};
  std::array<uint64_t, kWords> words;
  std::memcpy(words.data(), &packed, sizeof(packed));
  const uint64_t number = last_.load(memory_order_relaxed) + 1;
  Slot& slot = slots_[number % kCapacity];
  slot.number.store(0, memory_order_relaxed);
  std::atomic_thread_fence(memory_order_release);
  for (size_t i = 0; i < kWords; ++i) slot.words[i].store(words[i], memory_order_relaxed);
  slot.end_ticks.store(0, memory_order_relaxed);
  slot.state.store(static_cast<uint32_t>(FlightState::started), memory_order_relaxed);
  slot.number.store(number, memory_order_release);
  last_.store(number, memory_order_release);
  return number;
}

void FlightLog::end(uint64_t number, FlightState state) noexcept {
  Slot& slot = slots_[number % kCapacity];
  if (slot.number.load(memory_order_relaxed) != number) return;
  slot.end_ticks.store(ticks(), memory_order_relaxed);
  slot.state.store(static_cast<uint32_t>(state), memory_order_release);
}

std::optional<FlightEntry> FlightLog::entry(uint64_t number) const noexcept {
  const Slot& slot = slots_[number % kCapacity];
  if (number == 0 || slot.number.load(memory_order_acquire) != number) return std::nullopt;
  std::array<uint64_t, kWords> words;
  for (size_t i = 0; i < kWords; ++i) words[i] = slot.words[i].load(memory_order_relaxed);
  const auto state = static_cast<FlightState>(slot.state.load(memory_order_acquire));
  const uint64_t end_ticks = slot.end_ticks.load(memory_order_relaxed);
  std::atomic_thread_fence(memory_order_acquire);
  if (slot.number.load(memory_order_relaxed) != number) return std::nullopt;
  Packed packed;
  std::memcpy(static_cast<void*>(&packed), words.data(), sizeof(packed));
  const TickClock& clock = TickClock::instance();
  FlightEntry entry{packed.call, packed.group, number, clock.to_ns(packed.begin_ticks), 0, state};
  if (state != FlightState::started) entry.end_ns = clock.to_ns(end_ticks);
  return entry;
}

std::vector<FlightEntry> FlightLog::entries() const {
  std::vector<FlightEntry> result;
  const uint64_t newest = last();
  for (uint64_t number = newest >= kCapacity ? newest - kCapacity + 1 : 1; number <= newest; ++number) {
    if (auto found = entry(number)) result.push_back(*found);
  }
  return result;
}

std::string FlightLog::last_text(int rank) const {
  const std::optional<FlightEntry> found = entry(last());
  if (!found.has_value()) return fmt::format("rank {} has called nothing yet", rank);
  const double seconds =
      static_cast<double>(steady_ns() - (found->end_ns == 0 ? found->begin_ns : found->end_ns)) * 1e-9;
  return fmt::format("rank {} last called {}, operation {} of \"{}\", {} {:.1f} s ago", rank, to_string(found->call),
                     found->call.sequence, found->group.name.data(),
                     found->state == FlightState::started ? "is in progress, begun" : name(found->state), seconds);
}

FlightRecorder::FlightRecorder() {
  const auto log = std::make_shared<FlightLog>();
  log_ = log.get();
  owner_ = log;
}

void FlightRecorder::on_failure(std::function<void(std::string_view)> handler) {
  const std::lock_guard lock(mutex_);
  handler_ = std::move(handler);
}

void FlightRecorder::failed(std::string_view reason) noexcept {
  std::function<void(std::string_view)> handler;
  {
    const std::lock_guard lock(mutex_);
    handler = std::exchange(handler_, nullptr);
  }
  if (handler == nullptr) return;
  try {
    handler(reason);
  } catch (...) {  // a report that cannot be written must not hide the failure itself
  }
}

}  // namespace caravan
