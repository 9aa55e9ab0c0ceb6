#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "caravan/comm/store/secret/job_key.h"
#include "caravan/comm/store/store.h"

namespace caravan {

/// The place of this process in its job, from the environment that torchrun or our launcher sets.
struct RankInfo {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;           ///< of the store
  bool store_is_served = false;  ///< our launcher serves our store on master_port
  bool agent_store = false;      ///< torchrun's agent serves a c10d TCPStore on master_port
  bool by_mpirun = false;        ///< started by mpirun, which serves no store (see open_mpi_store)
  JobKey key;                    ///< of our store; unused in a world of one

  /// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_USE_AGENT_STORE and
  /// the variables of JobKey. Our launcher serves its store on CARAVAN_STORE_PORT, and leaves MASTER_PORT to programs
  /// such as torch.distributed. Without RANK, reads the variables of Open MPI's mpirun (OMPI_COMM_WORLD_*) or of
  /// MPICH's and its derivatives' (PMI_*, MPI_LOCAL*); without those either, the world has one rank. Throws UsageError
  /// naming the variable that is missing, not a number or out of range.
  static RankInfo from_environment();
};

struct StoreServerOptions {
  JobKey key{};
  LogLine log{};  ///< receives a line for each refused connection, at most ten per second
  std::chrono::milliseconds handshake_timeout{10'000};  ///< for a client to authenticate itself
  std::chrono::milliseconds stall_timeout{30'000};      ///< to receive a request or send a reply completely
};

/// Serves a store over TCP on a background thread until destroyed, for any number of clients. Clients must have its
/// JobKey. Other connections (other programs, garbage, silence, ranks of another job) are refused with a line in the
/// log and do not delay the job.
class StoreServer {
 public:
  /// Binds `address`:`port`; "*" is every address of this host, of IPv6 and IPv4, and port 0 any free port. Throws
  /// UsageError if the port is in use, naming it, and ResourceError without a file descriptor left.
  StoreServer(const std::string& address, int port, StoreServerOptions options = {});
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  int port() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A client of a StoreServer. Retries for `timeout`, since the server may start later, then throws CommError. Throws
/// UsageError, saying what differs, if the server belongs to another job. `rank` is for the server's log.
std::shared_ptr<Store> connect_store(const std::string& address, int port, std::chrono::milliseconds timeout,
                                     const JobKey& key = {}, int rank = -1);

/// A store within one process, for ranks that are threads.
std::shared_ptr<Store> local_store();

}  // namespace caravan
