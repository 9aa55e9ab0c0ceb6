#include "caravan/comm/measure/cores.h"

#include <sched.h>
#include <span>
#include <utility>

namespace caravan::measure {
namespace {

void run_on(std::span<const int> cores) noexcept {
  if (cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace

PinnedThread::PinnedThread(std::vector<int> cores, int local_rank) noexcept : cores_(std::move(cores)) {
  if (!cores_.empty()) run_on(std::span(cores_).subspan(static_cast<size_t>(local_rank) % cores_.size(), 1));
}

PinnedThread::~PinnedThread() { run_on(cores_); }

}  // namespace caravan::measure
