#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "caravan/comm/store.h"

namespace caravan {

/// Who this process is in its job: what torchrun and our own launcher put into the environment.
struct RankInfo {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  bool store_is_served = false;  ///< the launcher serves our store on master_port: connect, do not bind
  bool agent_store = false;      ///< torchrun's agent serves a c10d TCPStore on master_port: connect as its client
  bool by_mpirun = false;        ///< started by mpirun, which serves no store: ours is found by MPI (open_mpi_store)

  /// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_USE_AGENT_STORE and
  /// CARAVAN_STORE_SERVED. Without RANK: what the mpirun of Open MPI (OMPI_COMM_WORLD_*) or of MPICH's family (PMI_*,
  /// MPI_LOCAL*) says; without those: one rank of a world of one. Throws UsageError naming the variable that is
  /// missing, not a number or out of range.
  static RankInfo from_environment();
};

/// Serves a store over TCP on a background thread, for any number of clients, until destroyed.
class StoreServer {
 public:
  /// Binds `address`:`port` (0: any free port). Throws UsageError if the port is in use, naming it.
  StoreServer(const std::string& address, int port);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  int port() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A client of a StoreServer. Tries to connect until `timeout` passes (the server may start later), then throws
/// CommError.
std::shared_ptr<Store> connect_store(const std::string& address, int port, std::chrono::milliseconds timeout);

/// A store inside one process, for ranks that are threads.
std::shared_ptr<Store> local_store();

}  // namespace caravan
