#pragma once

#include <cerrno>
#include <ctime>
#include <pthread.h>
#include <signal.h>

namespace caravan {

/// Blocks `signal` on this thread and on threads it starts, while it lives, so that the system call that would raise it
/// returns an error instead. Discards signals raised meanwhile. For signals that are raised on the calling thread:
/// SIGPIPE, SIGXFSZ.
class BlockedSignal {
 public:
  explicit BlockedSignal(int signal) noexcept : signal_(signal) {
    sigemptyset(&set_);
    sigaddset(&set_, signal);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~BlockedSignal() {
    if (sigismember(&before_, signal_) == 1) return;
    const int error = errno;  // of the call that was protected
    const timespec now{};
    while (sigtimedwait(&set_, nullptr, &now) == signal_) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  BlockedSignal(const BlockedSignal&) = delete;
  BlockedSignal& operator=(const BlockedSignal&) = delete;

 private:
  int signal_;
  sigset_t set_{};
  sigset_t before_{};
};

}  // namespace caravan
