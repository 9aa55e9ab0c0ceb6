#include "apps/caravan/plan/plan_progress.h"

#include <cstdio>
#include <unistd.h>

#include <fmt/format.h>

namespace caravan::app {

using std::chrono::steady_clock;

PlanProgress::PlanProgress(double seconds)
    : shows_(::isatty(STDERR_FILENO) == 1), seconds_(seconds), begin_(steady_clock::now()) {
  show(0);
}

PlanProgress::~PlanProgress() {
  if (shows_) std::fputs("\r\033[K", stderr);
}

void PlanProgress::show(size_t num_estimated) {
  constexpr std::chrono::milliseconds kBetween{200};
  const auto now = steady_clock::now();
  if (!shows_ || (num_estimated > 0 && now - shown_ < kBetween)) return;
  shown_ = now;
  const std::chrono::duration<double> taken = now - begin_;
  fmt::print(stderr, "\r\033[Ksearching: {} layouts estimated, {:.0f} s of {:.0f} s", num_estimated, taken.count(),
             seconds_);
  std::fflush(stderr);
}

}  // namespace caravan::app
