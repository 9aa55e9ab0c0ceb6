#include "caravan/comm/backends/mpi/mpi.h"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/messages/message_communicator.h"
#include "caravan/comm/backends/mpi/library.h"
#include "caravan/comm/store/served_store.h"
#include "caravan/comm/store/startup.h"
#include "caravan/comm/store/wire/host_address.h"
#include "caravan/comm/store/wire/listen.h"

namespace caravan {
namespace {

using std::chrono::milliseconds;

constexpr size_t kLargestPiece = size_t{1} << 30;  // bytes

/// Returns what `call` does; turns MPI's exceptions into CommError.
template <class Call>
auto by_mpi(const RankInfo& info, const char* what, const Call& call) {
  try {
    return call();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& exception) {
    throw CommError({.op = "mpi",
                     .subject = what,
                     .fact = exception.what(),
                     .where = fmt::format("rank {} of {}", info.rank, info.world_size),
                     .action = "check that every rank of the job makes this call"});
  }
}

}  // namespace

std::shared_ptr<Store> open_mpi_store(const RankInfo& info, const CommOptions& options, const LogLine& log) {
  mpi::MpiSession& session = mpi::session(info);
  std::unique_ptr<StoreServer> server;
  std::string text;  // port, job, secret and address, a line each
  if (info.rank == 0) {
    const JobKey key = JobKey::for_launch(info.world_size);
    const bool one_host = info.local_world_size == info.world_size;
    server = std::make_unique<StoreServer>(one_host ? "127.0.0.1" : store_socket::kAnyAddress, 0,
                                           StoreServerOptions{.key = key, .log = log});
    text = fmt::format("{}\n{}\n{}\n{}", server->port(), key.id, key.secret, own_address(info));
  }
  const milliseconds timeout = startup_timeout(options);
  std::istringstream lines(by_mpi(info, "store", [&] { return session.from_rank_0(text, timeout); }));
  std::string port;
  std::string address;
  JobKey key;
  key.world_size = info.world_size;
  std::getline(lines, port);
  std::getline(lines, key.id);
  std::getline(lines, key.secret);
  std::getline(lines, address);
  auto client = connect_store(address, std::stoi(port), timeout, key, info.rank);
  return make_served_store(std::move(server), std::move(client), info.world_size);
}

std::shared_ptr<Communicator> make_mpi_world(const RankInfo& info, const std::shared_ptr<Store>& store,
                                             const CommOptions& options) {
  std::shared_ptr<messages::Transport> transport;
  std::shared_ptr<Store> own;
  if (info.world_size > 1) {
    mpi::MpiSession& session = mpi::session(info);
    own = next_world_store("mpi", info, store);
    wait_for_ranks("mpi", info, *own, startup_timeout(options));
    transport = by_mpi(info, "world", [&] { return session.connect(kLargestPiece); });
  }
  return messages::MessageCommunicator::make_world(std::make_shared<messages::MessageEngine>(
      "mpi", std::move(transport), std::move(own), info.rank, info.world_size, options));
}

}  // namespace caravan
