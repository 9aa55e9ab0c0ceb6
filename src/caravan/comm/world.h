#pragma once

#include <memory>
#include <string>

#include "caravan/comm/backends.h"
#include "caravan/comm/communicator.h"
#include "caravan/comm/options.h"
#include "caravan/comm/store/rendezvous.h"

namespace caravan {

/// The store of this job as the environment says: torchrun's agent, our launcher's, one that rank 0 serves on
/// master_port (ranks started by hand) or on a port that MPI tells (ranks started by mpirun). For a world of one rank:
/// a local store. Keep it as long as the world. `log` gets a line for each connection that a store served here refuses,
/// and one if other hosts can reach it and there is no secret.
std::shared_ptr<Store> open_store(const RankInfo& info, const CommOptions& options = {}, const LogLine& log = {});

/// The world of this process by back-end name: "shm", "gloo", "mpi", "nccl"; "shm+gloo" and
/// "shm+mpi", shared memory inside hosts and messages between them; "hierarchical", the latter if mpirun has started
/// the ranks, else the former; or "auto": shm when all ranks are on one host, else messages (mpi if mpirun has started
/// them, else gloo), with shm where some host has more than one rank. "thread" is the world of a process that is alone;
/// several thread ranks are run by run_thread_ranks. Throws UsageError naming the back-ends that are built, and those
/// that are not.
std::shared_ptr<Communicator> make_world(const std::string& backend, const RankInfo& info,
                                         const std::shared_ptr<Store>& store, const CommOptions& options = {});

}  // namespace caravan
