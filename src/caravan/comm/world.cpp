#include "caravan/comm/world.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/backends/gloo/gloo.h"
#include "caravan/comm/backends/hierarchical/hierarchical.h"
#include "caravan/comm/backends/hierarchical/hosts.h"
#include "caravan/comm/backends/hierarchical/topology.h"
#include "caravan/comm/backends/mpi/library.h"
#include "caravan/comm/backends/mpi/mpi.h"
#include "caravan/comm/backends/nccl/nccl.h"
#include "caravan/comm/backends/shared/shared_communicator.h"
#include "caravan/comm/backends/shared/shm.h"
#include "caravan/comm/store/served_store.h"
#include "caravan/comm/store/startup.h"
#include "caravan/comm/store/wire/listen.h"

namespace caravan {
namespace {

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

/// One rank: nothing is moved, for any back-end.
std::shared_ptr<Communicator> make_world_of_one(const CommOptions& options) {
  const auto segment = shared::Segment::create_private(1);
  return shared::SharedCommunicator::make_world(
      std::make_shared<shared::SharedEngine>(segment, 0, "thread", options, nullptr));
}

[[noreturn]] void refuse_backend(const std::string& backend, const RankInfo& info, std::string fact,
                                 std::string action) {
  throw UsageError({.op = "comm",
                    .subject = fmt::format("backend \"{}\"", backend),
                    .fact = std::move(fact),
                    .where = fmt::format("rank {} of {}", info.rank, info.world_size),
                    .action = std::move(action)});
}

/// The ranks exchange their hosts, since a host's launcher knows only its own ranks.
std::shared_ptr<Communicator> make_best_world(const RankInfo& info, const std::shared_ptr<Store>& store,
                                              const CommOptions& options) {
  if (info.world_size == 1) return make_world_of_one(options);
  if (info.local_world_size == info.world_size) return make_shm_world(info, store, options);
  const auto own = prefixed(store, "auto");
  const hierarchical::Topology topology(hierarchical::find_hosts(info, *own, "", startup_timeout(options)));
  if (topology.has_one_host()) return make_shm_world(info, store, options);
  if (!topology.has_single_ranks()) {
    return make_hierarchical_world(info, store, options, info.by_mpirun ? "mpi" : "gloo");
  }
  return info.by_mpirun ? make_mpi_world(info, store, options) : make_gloo_world(info, store, options);
}

}  // namespace

std::shared_ptr<Store> open_store(const RankInfo& info, const CommOptions& options, const LogLine& log) {
  if (info.world_size == 1) return local_store();
  if (info.by_mpirun) return open_mpi_store(info, options, log);
  if (info.agent_store) return connect_agent_store(info, options.timeout);
  if (info.store_is_served) {
    return connect_store(info.master_addr, info.master_port, options.timeout, info.key, info.rank);
  }
  if (info.rank != 0) {
    auto client = connect_store(info.master_addr, info.master_port, options.timeout, info.key, info.rank);
    return make_served_store(nullptr, std::move(client), info.world_size);
  }
  // A name of this host may resolve to 127.0.1.1 in its hosts file, which other hosts could not reach.
  const std::string bound = is_loopback(info.master_addr) ? info.master_addr : store_socket::kAnyAddress;
  auto server = std::make_unique<StoreServer>(bound, info.master_port, StoreServerOptions{.key = info.key, .log = log});
  if (log && info.key.secret.empty() && !is_loopback(bound)) {
    log(fmt::format(
        "store: any process that reaches port {} of this host can join the job; set CARAVAN_SECRET to the same "
        "value for every rank to prevent this (openssl rand -hex 32 generates one)",
        info.master_port));
  }
  auto client = connect_store(is_loopback(bound) ? bound : "127.0.0.1", info.master_port, options.timeout, info.key, 0);
  return make_served_store(std::move(server), std::move(client), info.world_size);
}

std::shared_ptr<Communicator> make_world(const std::string& backend, const RankInfo& info,
                                         const std::shared_ptr<Store>& store, const CommOptions& options) {
  if (backend == "auto") return make_best_world(info, store, options);
  if (backend == "shm") return make_shm_world(info, store, options);
  if (backend == "gloo") return make_gloo_world(info, store, options);
  if (backend == "shm+gloo") return make_hierarchical_world(info, store, options, "gloo");
  if (backend == "hierarchical") {
    return make_hierarchical_world(info, store, options, info.by_mpirun ? "mpi" : "gloo");
  }
  if (backend == "thread") {
    if (info.world_size == 1) return make_world_of_one(options);
    refuse_backend(backend, info, "its ranks are threads of one process, and these are processes",
                   "choose auto, shm or gloo");
  }
  if (const auto missing = missing_backend(backend)) {
    refuse_backend(backend, info, "it is " + missing->fact, missing->action);
  }
  if (backend == "nccl") return make_nccl_world(info, store, options);
  if (backend == "mpi") return make_mpi_world(info, store, options);
  if (backend == "shm+mpi") return make_hierarchical_world(info, store, options, "mpi");
  const std::vector<std::string> built = built_backends();
  refuse_backend(backend, info, fmt::format("there is no such back-end; there are {}", join(built)),
                 fmt::format("choose {}", nearest(backend, built)));
}

}  // namespace caravan
