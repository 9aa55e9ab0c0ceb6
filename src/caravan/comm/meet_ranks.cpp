#include "caravan/comm/meet_ranks.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/text.h"

namespace caravan {

std::chrono::milliseconds meeting_timeout(const CommOptions& options) {
  constexpr std::chrono::milliseconds kLeast{5000};
  return std::max(options.timeout, kLeast);
}

std::string missing_text(std::vector<int64_t> missing, int world_size, Store& store,
                         std::chrono::milliseconds timeout) {
  std::vector<int64_t> gone;
  for (const int64_t rank : missing) {
    if (store.has_left(static_cast<int>(rank))) gone.push_back(rank);
  }
  const std::string what = gone.empty()
                               ? fmt::format("did not come within {} s", std::chrono::duration<double>(timeout).count())
                               : "ended before the ranks met";
  if (!gone.empty()) missing = std::move(gone);
  return fmt::format("rank{} {} of {} {}", missing.size() == 1 ? "" : "s", join(missing), world_size, what);
}

}  // namespace caravan
