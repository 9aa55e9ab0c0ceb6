#include "caravan/comm/world.h"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/gloo.h"
#include "caravan/comm/mpi.h"
#include "caravan/comm/mpi_library.h"
#include "caravan/comm/shared/shared_communicator.h"
#include "caravan/comm/shm.h"

namespace caravan {
namespace {

/// The store of ranks started by hand: rank 0 serves it as long as it holds it.
class ServedStore final : public Store {
 public:
  ServedStore(std::unique_ptr<StoreServer> server, std::shared_ptr<Store> client)
      : server_(std::move(server)), client_(std::move(client)) {}

  void set(std::string_view key, std::string_view value) override { client_->set(key, value); }
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override {
    return client_->get(key, timeout);
  }
  bool has(std::string_view key) override { return client_->has(key); }
  int64_t add(std::string_view key, int64_t amount) override { return client_->add(key, amount); }

 private:
  std::unique_ptr<StoreServer> server_;
  std::shared_ptr<Store> client_;
};

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

/// One rank: whatever the back-end, nothing is moved.
std::shared_ptr<Communicator> make_world_of_one(const CommOptions& options) {
  const auto segment = shared::Segment::create_private(1);
  segment->take_slot();  // slot 0: the world
  return shared::SharedCommunicator::make_world(
      std::make_shared<shared::Engine>(segment, 0, "thread", options, nullptr));
}

[[noreturn]] void refuse_backend(const std::string& backend, const RankInfo& info, std::string fact,
                                 std::string action) {
  throw UsageError({.op = "comm",
                    .subject = fmt::format("backend \"{}\"", backend),
                    .fact = std::move(fact),
                    .where = fmt::format("rank {} of {}", info.rank, info.world_size),
                    .action = std::move(action)});
}

}  // namespace

std::shared_ptr<Store> open_store(const RankInfo& info, const CommOptions& options, const LogLine& log) {
  if (info.world_size == 1) return local_store();
  if (info.by_mpirun) return open_mpi_store(info, options, log);
  if (info.agent_store) return connect_agent_store(info, options.timeout);
  if (info.store_is_served || info.rank != 0) {
    return connect_store(info.master_addr, info.master_port, options.timeout, info.key, info.rank);
  }
  // A name of this host may stand for 127.0.1.1 in its own hosts file: other hosts could not reach that.
  const std::string bound = is_loopback(info.master_addr) ? info.master_addr : "0.0.0.0";
  auto server = std::make_unique<StoreServer>(bound, info.master_port, StoreServerOptions{.key = info.key, .log = log});
  if (log && info.key.secret.empty() && !is_loopback(bound)) {
    log(fmt::format(
        "store: whoever reaches port {} of this host can join the job; a CARAVAN_SECRET, the same for every "
        "rank, keeps strangers out (openssl rand -hex 32 makes one)",
        info.master_port));
  }
  auto client = connect_store(is_loopback(bound) ? bound : "127.0.0.1", info.master_port, options.timeout, info.key, 0);
  return std::make_shared<ServedStore>(std::move(server), std::move(client));
}

std::shared_ptr<Communicator> make_world(const std::string& backend, const RankInfo& info,
                                         const std::shared_ptr<Store>& store, const CommOptions& options) {
  std::vector<std::string> known = {"auto", "thread", "shm", "gloo"};
  if (!mpi::built().empty()) known.emplace_back("mpi");
  if (backend == "shm") return make_shm_world(info, store, options);
  if (backend == "gloo") return make_gloo_world(info, store, options);
  if (backend == "auto") {
    if (info.world_size == 1) return make_world_of_one(options);
    if (info.local_world_size == info.world_size) return make_shm_world(info, store, options);
    return info.by_mpirun ? make_mpi_world(info, store, options) : make_gloo_world(info, store, options);
  }
  if (backend == "thread") {
    if (info.world_size == 1) return make_world_of_one(options);
    refuse_backend(backend, info, "its ranks are threads of one process, and these are processes",
                   "choose auto, shm or gloo");
  }
  if (backend == "mpi" && mpi::built().empty()) {
    refuse_backend(backend, info, fmt::format("it is not built; there are {}", join(known)),
                   "choose gloo, or configure with -DCARAVAN_MPI=openmpi or mpich");
  }
  if (backend == "mpi") return make_mpi_world(info, store, options);
  refuse_backend(backend, info, fmt::format("there is no such back-end; there are {}", join(known)),
                 fmt::format("choose {}", nearest(backend, known)));
}

}  // namespace caravan
