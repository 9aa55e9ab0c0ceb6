#include "caravan/cost/process_memory.h"

#include <algorithm>

namespace caravan {

int64_t memory_share(int64_t host_bytes, int ranks_on_host) noexcept {
  if (host_bytes <= 0) return 0;
  const int64_t share = host_bytes / std::max(1, ranks_on_host);
  return std::max({share - kProcessBytes, share / 2, int64_t{1}});
}

int64_t resident_bytes(std::string_view backend, int num_ranks, int64_t held_bytes) noexcept {
  constexpr int64_t kMiB = int64_t{1} << 20;
  const int64_t beside = std::min(num_ranks * 4 * kMiB, 3 * held_bytes / 20);
  if (backend == "thread") return held_bytes + beside + (60 + num_ranks) * kMiB;
  const bool is_mpi = backend.find("mpi") != std::string_view::npos;
  return held_bytes + beside + (num_ranks * (is_mpi ? 68 : 65) + (is_mpi ? 4 : 3)) * kMiB;
}

}  // namespace caravan
