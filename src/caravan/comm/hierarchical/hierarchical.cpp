#include "caravan/comm/hierarchical.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/gloo.h"
#include "caravan/comm/hierarchical/hierarchical_communicator.h"
#include "caravan/comm/hierarchical/hosts.h"
#include "caravan/comm/meet_ranks.h"
#include "caravan/comm/messages/meeting.h"
#include "caravan/comm/mpi.h"
#include "caravan/comm/mpi_library.h"
#include "caravan/comm/shm.h"

namespace caravan {
namespace {

void check_outer(const std::string& outer, const RankInfo& info) {
  std::vector<std::string> known{"gloo"};
  if (!mpi::built().empty()) known.emplace_back("mpi");
  if (std::ranges::find(known, outer) != known.end()) return;
  throw UsageError(
      {.op = "make_hierarchical_world",
       .subject = fmt::format("back-end \"{}\" between hosts", outer),
       .fact = fmt::format("{}; there are {}", outer == "mpi" ? "it is not built" : "it is none", join(known)),
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
    own = messages::next_world("hierarchical", info, store);
    hosts = hierarchical::find_hosts(info, *own, host, meeting_timeout(options));
  }
  hierarchical::Levels levels{hierarchical::Topology(hosts), info.rank, nullptr, nullptr, nullptr};
  RankInfo here = info;
  here.rank = here.local_rank = levels.place();
  here.world_size = here.local_world_size = static_cast<int>(levels.mates().size());
  const auto store_of_host =
      own != nullptr ? prefixed(own, fmt::format("host {}", levels.host()), levels.mates()) : nullptr;
  levels.inner = make_shm_world(here, store_of_host, options, levels.mates());
  if (!levels.topology.has_one_host()) {
    levels.everyone = outer == "gloo" ? make_gloo_world(info, own, options) : make_mpi_world(info, own, options);
    levels.cross = levels.topology.has_single_ranks()
                       ? levels.everyone
                       : levels.everyone->split(levels.topology.level(levels.place()), "level");
  }
  auto member = std::make_shared<hierarchical::Member>("shm+" + outer, std::move(own), info.rank, info.world_size,
                                                       options, levels.inner, levels.everyone);
  return hierarchical::HierarchicalCommunicator::make_world(std::move(member), std::move(levels));
}

}  // namespace caravan
