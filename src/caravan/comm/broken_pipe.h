#pragma once

#include <pthread.h>
#include <signal.h>

namespace caravan {

/// While it lives, writing to a connection whose peer is gone is an error for this thread, and for threads it starts,
/// and not a SIGPIPE that ends the process: gloo writes without MSG_NOSIGNAL. What was written meanwhile leaves no
/// signal behind.
class NoBrokenPipeSignal {
 public:
  NoBrokenPipeSignal() noexcept {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoBrokenPipeSignal() {
    if (sigismember(&before_, SIGPIPE) == 1) return;
    const timespec now{};
    while (sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoBrokenPipeSignal(const NoBrokenPipeSignal&) = delete;
  NoBrokenPipeSignal& operator=(const NoBrokenPipeSignal&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
};

}  // namespace caravan
