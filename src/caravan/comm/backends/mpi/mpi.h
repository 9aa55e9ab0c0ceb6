#pragma once

#include <memory>

#include "caravan/comm/communicator.h"
#include "caravan/comm/options.h"
#include "caravan/comm/store/rendezvous.h"

namespace caravan {

/// The world of processes started by mpirun, over MPI's point-to-point messages. Every rank of `info` calls it. Every
/// verb is built from messages as for gloo: sums in rank order, bf16 and fp16 accumulated in fp32, messages of any
/// size.
///
/// MPIs have different ABIs, so each configured one (CARAVAN_MPI) has its own shared library. The process loads the one
/// that the launcher's variables or CARAVAN_MPI_LIBRARY (a name or path) select. Throws UsageError if it cannot, or if
/// it is not the launcher's MPI, in which case MPI sees every process as rank 0 of 1. Calls MPI_Init, and MPI_Finalize
/// at the end of the process, unless the program itself has initialised MPI, which must be with MPI_THREAD_MULTIPLE. If
/// a process dies, most launchers end the whole job, so no rank is left to report it.
std::shared_ptr<Communicator> make_mpi_world(const RankInfo& info, const std::shared_ptr<Store>& store,
                                             const CommOptions& options = {});

/// A store for ranks started by mpirun. Rank 0 serves it on a free port and sends port and secret to the others by MPI.
/// The destructor on rank 0 waits up to a second for the other ranks, which may still have to read why it failed. `log`
/// receives a line for each refused connection.
std::shared_ptr<Store> open_mpi_store(const RankInfo& info, const CommOptions& options, const LogLine& log = {});

}  // namespace caravan
