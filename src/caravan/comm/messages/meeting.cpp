#include "caravan/comm/messages/meeting.h"

#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/meet_ranks.h"

namespace caravan::messages {

std::shared_ptr<Store> next_world(std::string_view backend, const RankInfo& info, const std::shared_ptr<Store>& store) {
  const int64_t number = store->add(fmt::format("{}/{}", backend, info.rank), 1);
  return prefixed(store, fmt::format("{}/world {}", backend, number));
}

void meet(std::string_view backend, const RankInfo& info, Store& store, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  store.set(fmt::format("here/{}", info.rank), "");
  std::vector<int64_t> absent;
  bool somebody_left = false;
  for (int rank = 0; rank < info.world_size; ++rank) {
    if (get_from(store, fmt::format("here/{}", rank), rank, somebody_left ? deadline - timeout : deadline)) continue;
    absent.push_back(rank);
    somebody_left = somebody_left || store.has_left(rank);
  }
  if (absent.empty()) return;
  throw CommError({.op = std::string(backend),
                   .subject = "world",
                   .fact = missing_text(std::move(absent), info.world_size, store, timeout),
                   .where = fmt::format("rank {}", info.rank),
                   .action = "start all ranks with the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT"});
}

}  // namespace caravan::messages
