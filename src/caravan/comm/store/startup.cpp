#include "caravan/comm/store/startup.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan {

std::chrono::milliseconds startup_timeout(const CommOptions& options) {
  constexpr std::chrono::milliseconds kMinimum{5000};
  return std::max(options.timeout, kMinimum);
}

std::shared_ptr<Store> next_world_store(std::string_view backend, const RankInfo& info,
                                        const std::shared_ptr<Store>& store) {
  const int64_t number = store->add(fmt::format("{}/{}", backend, info.rank), 1);
  return prefixed(store, fmt::format("{}/world {}", backend, number));
}

void wait_for_ranks(std::string_view backend, const RankInfo& info, Store& store, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  store.set(fmt::format("here/{}", info.rank), "");
  std::vector<int64_t> missing;
  bool has_lost_one = false;  // then waiting for others is pointless
  for (int rank = 0; rank < info.world_size; ++rank) {
    const auto until = has_lost_one ? deadline - timeout : deadline;
    if (get_from(store, fmt::format("here/{}", rank), rank, until)) continue;
    missing.push_back(rank);
    has_lost_one = has_lost_one || store.has_disconnected(rank);
  }
  if (missing.empty()) return;
  throw CommError({.op = std::string(backend),
                   .subject = "world",
                   .fact = missing_ranks_text(std::move(missing), info.world_size, store, timeout),
                   .where = fmt::format("rank {}", info.rank),
                   .action = "start all ranks with the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT"});
}

std::string missing_ranks_text(std::vector<int64_t> missing, int world_size, Store& store,
                               std::chrono::milliseconds timeout) {
  std::vector<int64_t> disconnected;
  for (const int64_t rank : missing) {
    if (store.has_disconnected(static_cast<int>(rank))) disconnected.push_back(rank);
  }
  const std::string what = disconnected.empty()
                               ? fmt::format("did not join within {} s", std::chrono::duration<double>(timeout).count())
                               : "ended before the ranks met";
  if (!disconnected.empty()) missing = std::move(disconnected);
  return fmt::format("rank{} {} of {} {}", missing.size() == 1 ? "" : "s", join(missing), world_size, what);
}

}  // namespace caravan
