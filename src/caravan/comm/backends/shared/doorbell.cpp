#include "caravan/comm/backends/shared/doorbell.h"

#include <ctime>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace caravan::shared {
namespace {

// Not the private variant: the other side may be another process.
long futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* timeout) noexcept {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, timeout, nullptr, 0);
}

bool membarrier(int command) noexcept { return syscall(SYS_membarrier, command, 0, 0) == 0; }

}  // namespace

void Doorbell::set_up() noexcept {
  static const bool is_registered = membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
  sleeper_has_barrier.store(is_registered, std::memory_order_relaxed);
}

void Doorbell::wake_up() noexcept {
  rings_.fetch_add(1, std::memory_order_seq_cst);
  futex(&rings_, FUTEX_WAKE, 1, nullptr);
}

uint32_t Doorbell::announce() noexcept {
  const uint32_t seen = rings_.load(std::memory_order_seq_cst);
  asleep_.store(1, std::memory_order_seq_cst);
  membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
  return seen;
}

void Doorbell::sleep(uint32_t announced, std::chrono::nanoseconds at_most) noexcept {
  const timespec timeout{.tv_sec = at_most.count() / 1'000'000'000, .tv_nsec = at_most.count() % 1'000'000'000};
  futex(&rings_, FUTEX_WAIT, announced, &timeout);
  cancel();
}

}  // namespace caravan::shared
