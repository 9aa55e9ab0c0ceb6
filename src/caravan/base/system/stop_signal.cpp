#include "caravan/base/system/stop_signal.h"

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <unistd.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};

// Global because a signal handler has no argument to pass an object in.
std::atomic<bool> alive{false};
std::atomic<int64_t> requested_at_ms{0};  ///< 0: not requested
std::atomic<bool> second_ends{false};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free,
              "a signal handler must not wait for a lock");
std::array<struct sigaction, kSignals.size()> before;

int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

void on_signal(int) {
  const int64_t now = now_ms();
  int64_t first = 0;
  if (requested_at_ms.compare_exchange_strong(first, now)) return;
  if (second_ends && now - first > kOneRequest.count()) _exit(130);
}

}  // namespace

StopSignal::StopSignal(Second second) {
  if (alive.exchange(true)) {
    throw UsageError({.op = "stop signal",
                      .subject = "",
                      .fact = "this process already has a StopSignal",
                      .action = "create one, in main()"});
  }
  requested_at_ms = 0;
  second_ends = second == Second::ends_at_once;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &before[i]);
    const bool keep = kSignals[i] == SIGHUP && before[i].sa_handler == SIG_IGN;
    if (!keep) sigaction(kSignals[i], &action, nullptr);
  }
}

StopSignal::~StopSignal() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before[i], nullptr);
  alive = false;
}

bool StopSignal::requested() const noexcept { return requested_at_ms != 0; }

}  // namespace caravan
