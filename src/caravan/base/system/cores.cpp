#include "caravan/base/system/cores.h"

#include <algorithm>
#include <sched.h>
#include <thread>

namespace caravan {

std::vector<int> usable_cores() {
  std::vector<int> cores;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

int num_usable_cores() {
  const std::vector<int> cores = usable_cores();
  const size_t num_cores = cores.empty() ? std::thread::hardware_concurrency() : cores.size();
  return std::max(1, static_cast<int>(num_cores));
}

}  // namespace caravan
