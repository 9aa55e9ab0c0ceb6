#include "caravan/cost/process_memory.h"

#include <algorithm>

namespace caravan {

int64_t memory_share(int64_t host_bytes, int ranks_on_host) noexcept {
  if (host_bytes <= 0) return 0;
  const int64_t share = host_bytes / std::max(1, ranks_on_host);
  return std::max({share - kProcessBytes, share / 2, int64_t{1}});
}

}  // namespace caravan
