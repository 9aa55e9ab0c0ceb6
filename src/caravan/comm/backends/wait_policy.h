#pragma once

#include <chrono>
#include <cstdint>
#include <sched.h>

#include "caravan/comm/backends/relax.h"

namespace caravan {

/// How ranks wait. Every wait polls, backs off between polls, checks the health of its peers from time to time, and
/// times out if nothing has moved for the communicator's time-out.

/// Asks the kernel whether the peers' processes still run: cheap.
inline constexpr std::chrono::milliseconds kProcessCheckInterval{50};
/// Asks the store whether the ranks are there, or what failed elsewhere: costs messages.
inline constexpr std::chrono::milliseconds kRendezvousCheckInterval{100};
inline constexpr std::chrono::milliseconds kStoreCheckInterval{250};

/// What a thread does after a poll that found nothing: it spins, then yields its core, then sleeps.
class Backoff {
 public:
  static constexpr int kYields = 32;

  explicit Backoff(int spins, int yields = kYields) noexcept : spins_(spins), yields_(yields) {}

  void reset() noexcept { idle_polls_ = 0; }
  /// Spins or yields once and returns false; returns true at once when it is time to sleep.
  bool should_sleep() noexcept {
    if (++idle_polls_ < spins_) {
      relax();
      return false;
    }
    if (idle_polls_ < spins_ + yields_) {
      sched_yield();
      return false;
    }
    return true;
  }

 private:
  int spins_, yields_;
  int idle_polls_ = 0;
};

/// The time since a counter of progress last changed.
class StallTimer {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StallTimer(uint64_t progress) : progress_(progress) {}

  /// Returns true if `progress` has changed since the last call, or since the construction; then it starts again.
  bool restart_if_moved(uint64_t progress, Clock::time_point now) noexcept {
    if (progress == progress_) return false;
    progress_ = progress;
    since_ = now;
    return true;
  }
  void restart() noexcept { since_ = Clock::now(); }
  Clock::time_point since() const noexcept { return since_; }

 private:
  uint64_t progress_;
  Clock::time_point since_ = Clock::now();
};

/// Limits a check to one per interval.
class Periodic {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Periodic(std::chrono::milliseconds interval, Clock::time_point first = {}) noexcept
      : interval_(interval), next_(first) {}

  bool is_due(Clock::time_point now) noexcept {
    if (now < next_) return false;
    next_ = now + interval_;
    return true;
  }
  Clock::time_point next() const noexcept { return next_; }

 private:
  std::chrono::milliseconds interval_;
  Clock::time_point next_;
};

}  // namespace caravan
