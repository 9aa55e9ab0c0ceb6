#include "caravan/base/memory_counter.h"

namespace caravan {
namespace {

MemoryCounter& process_counter() noexcept {
  static MemoryCounter* counter = new MemoryCounter;  // never destroyed: blocks are freed after main() too
  return *counter;
}

thread_local MemoryCounter* innermost = nullptr;

}  // namespace

void MemoryCounter::add(int64_t bytes) noexcept {
  const int64_t now = live_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t peak = peak_.load(std::memory_order_relaxed);
  while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
}

MemoryCounter& MemoryCounter::current() noexcept { return innermost != nullptr ? *innermost : process_counter(); }

MemoryScope::MemoryScope(MemoryCounter& counter) noexcept : outer_(innermost) { innermost = &counter; }

MemoryScope::~MemoryScope() { innermost = outer_; }

}  // namespace caravan
