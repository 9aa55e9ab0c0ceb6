#include "caravan/cost/process_memory.h"

#include <algorithm>
#include <fstream>
#include <unistd.h>

namespace caravan {

int64_t memory_share(int64_t host_bytes, int ranks_on_host) noexcept {
  if (host_bytes <= 0) return 0;
  const int64_t share = host_bytes / std::max(1, ranks_on_host);
  return std::max({share - kProcessBytes, share / 2, int64_t{1}});
}

int64_t anonymous_bytes() {
  int64_t all = 0, resident = 0, of_files = 0;  // pages
  std::ifstream("/proc/self/statm") >> all >> resident >> of_files;
  return (resident - of_files) * sysconf(_SC_PAGESIZE);
}

int64_t resident_bytes(std::string_view backend, int num_ranks, int64_t started_bytes, int64_t held_bytes) noexcept {
  constexpr int64_t kMiB = int64_t{1} << 20;
  const int64_t beside = num_ranks * 3 * kMiB + std::min(num_ranks * 6 * kMiB, 3 * held_bytes / 10);
  const bool is_mpi = backend.find("mpi") != std::string_view::npos;
  const int64_t launcher = backend == "thread" ? 0 : is_mpi ? 4 * kMiB : 3 * kMiB;
  return started_bytes + held_bytes + beside + launcher;
}

}  // namespace caravan
