#include "caravan/comm/backends/hierarchical/hierarchical.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/backends/gloo/gloo.h"
#include "caravan/comm/backends/hierarchical/hierarchical_communicator.h"
#include "caravan/comm/backends/hierarchical/hosts.h"
#include "caravan/comm/backends/mpi/library.h"
#include "caravan/comm/backends/mpi/mpi.h"
#include "caravan/comm/backends/shared/shm.h"
#include "caravan/comm/store/startup.h"

namespace caravan {
namespace {

void check_outer(const std::string& outer, const RankInfo& info) {
  std::vector<std::string> known{"gloo"};
  if (!mpi::built().empty()) known.emplace_back("mpi");
  if (std::ranges::find(known, outer) != known.end()) return;
  throw UsageError(
      {.op = "make_hierarchical_world",
       .subject = fmt::format("back-end \"{}\" between hosts", outer),
       .fact = fmt::format("{}; there are {}", outer == "mpi" ? "it is not built" : "it does not exist", join(known)),
       .where = fmt::format("rank {} of {}", info.rank, info.world_size),
       .action = fmt::format("choose {}", nearest(outer, known))});
}

}  // namespace

std::shared_ptr<Communicator> make_hierarchical_world(const RankInfo& info, const std::shared_ptr<Store>& store,
                                                      const CommOptions& options, const std::string& outer,
                                                      const std::string& host) {
  check_outer(outer, info);
  std::shared_ptr<Store> own;
  std::vector<int> hosts{0};
  if (info.world_size > 1) {
    own = next_world_store("hierarchical", info, store);
    hosts = hierarchical::find_hosts(info, *own, host, startup_timeout(options));
  }
  hierarchical::Levels levels{hierarchical::Topology(hosts), info.rank, nullptr, nullptr, nullptr};
  RankInfo here = info;
  here.rank = here.local_rank = levels.local_rank();
  here.world_size = here.local_world_size = static_cast<int>(levels.local_ranks().size());
  const auto store_of_host =
      own != nullptr ? prefixed(own, fmt::format("host {}", levels.host()), levels.local_ranks()) : nullptr;
  levels.local = make_shm_world(here, store_of_host, options, levels.local_ranks());
  if (!levels.topology.has_one_host()) {
    levels.global = outer == "gloo" ? make_gloo_world(info, own, options) : make_mpi_world(info, own, options);
    levels.cross = levels.topology.has_single_ranks()
                       ? levels.global
                       : levels.global->split(levels.topology.cross_ranks(levels.local_rank()), "cross");
  }
  auto engine = std::make_shared<hierarchical::HierarchicalEngine>(
      "shm+" + outer, std::move(own), info.rank, info.world_size, options, levels.local, levels.global);
  return hierarchical::HierarchicalCommunicator::make_world(std::move(engine), std::move(levels));
}

}  // namespace caravan
