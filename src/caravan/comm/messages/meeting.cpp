#include "caravan/comm/messages/meeting.h"

#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan::messages {

std::shared_ptr<Store> next_world(std::string_view backend, const RankInfo& info, const std::shared_ptr<Store>& store) {
  const int64_t number = store->add(fmt::format("{}/{}", backend, info.rank), 1);
  return prefixed(store, fmt::format("{}/world {}", backend, number));
}

void meet(std::string_view backend, const RankInfo& info, Store& store, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  store.set(fmt::format("here/{}", info.rank), "");
  std::vector<int64_t> absent;
  std::vector<int64_t> gone;
  for (int rank = 0; rank < info.world_size; ++rank) {
    if (get_from(store, fmt::format("here/{}", rank), rank, gone.empty() ? deadline : deadline - timeout)) continue;
    absent.push_back(rank);
    if (store.has_left(rank)) gone.push_back(rank);
  }
  if (absent.empty()) return;
  const std::string what = gone.empty()
                               ? fmt::format("did not come within {} s", static_cast<double>(timeout.count()) / 1e3)
                               : "ended before the ranks met";
  if (!gone.empty()) absent = std::move(gone);
  throw CommError({.op = std::string(backend),
                   .subject = "world",
                   .fact = fmt::format("{} {} of {} {}", absent.size() == 1 ? "rank" : "ranks", join(absent),
                                       info.world_size, what),
                   .where = fmt::format("rank {}", info.rank),
                   .action = "start all ranks with the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT"});
}

}  // namespace caravan::messages
