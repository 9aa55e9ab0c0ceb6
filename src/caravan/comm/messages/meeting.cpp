#include "caravan/comm/messages/meeting.h"

#include <thread>
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
  for (int rank = 0; rank < info.world_size; ++rank) {
    const std::string key = fmt::format("here/{}", rank);
    while (!store.has(key)) {
      if (std::chrono::steady_clock::now() >= deadline) {
        absent.push_back(rank);
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  if (absent.empty()) return;
  throw CommError({.op = std::string(backend),
                   .subject = "world",
                   .fact = fmt::format("{} {} of {} did not come within {} s", absent.size() == 1 ? "rank" : "ranks",
                                       join(absent), info.world_size, static_cast<double>(timeout.count()) / 1e3),
                   .where = fmt::format("rank {}", info.rank),
                   .action = "start all ranks with the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT"});
}

}  // namespace caravan::messages
