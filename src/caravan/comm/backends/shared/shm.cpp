#include "caravan/comm/backends/shared/shm.h"

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/peers/local_peers.h"
#include "caravan/comm/backends/shared/shared_communicator.h"

namespace caravan {

std::shared_ptr<Communicator> make_shm_world(const RankInfo& info, const std::shared_ptr<Store>& store,
                                             const CommOptions& options, std::vector<int> world_ranks) {
  if (info.world_size < 1 || info.rank < 0 || info.rank >= info.world_size) {
    throw UsageError({.op = "make_shm_world",
                      .fact = fmt::format("there is no rank {} in a world of {}", info.rank, info.world_size),
                      .action = "give a world of 1 or more ranks, and a rank below its size"});
  }
  shared::LocalPeers local;
  std::unique_ptr<shared::PeerWatch> watch;
  if (info.world_size == 1) {
    local.segment = shared::Segment::create_private(1);
  } else {
    local = shared::connect_local_ranks(info, *store, options.timeout);
    watch = std::make_unique<shared::ProcessWatch>(std::move(local.peers));
  }
  return shared::SharedCommunicator::make_world(std::make_shared<shared::SharedEngine>(
      std::move(local.segment), info.rank, "shm", options, std::move(watch), std::move(world_ranks), local.num_cores));
}

}  // namespace caravan
