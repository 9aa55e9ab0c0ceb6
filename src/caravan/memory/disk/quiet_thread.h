#pragma once

#include <csignal>
#include <thread>
#include <utility>

namespace caravan::disk {

/// A thread that no signal interrupts: they are for the program's own threads, and SIGXFSZ would end the process where
/// a write beyond ulimit -f is to be reported.
template <class Run>
std::thread quiet_thread(Run run) {
  sigset_t all{};
  sigset_t before{};
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread(std::move(run));
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

}  // namespace caravan::disk
