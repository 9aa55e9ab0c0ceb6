#pragma once

#include <memory>

#include "caravan/comm/communicator.h"
#include "caravan/comm/options.h"
#include "caravan/comm/rendezvous.h"

namespace caravan {

/// The world of processes that mpirun has started, over MPI's messages. Every rank of `info` calls it. Every verb is
/// built from messages as with gloo: sums in rank order, bf16 and fp16 accumulated in fp32, messages of any size.
///
/// MPIs have different binary interfaces: each that was configured (CARAVAN_MPI) is a shared object of its own, and the
/// launcher's variables, or CARAVAN_MPI_LIBRARY (a name or a path), say which one this process loads. Throws UsageError
/// if it is not there, or is not the launcher's: every process is then rank 0 of 1. MPI_Init and MPI_Finalize happen
/// here and at the end of the process, unless the program has initialised MPI, with MPI_THREAD_MULTIPLE.
/// A process that dies is the launcher's to notice: most end the job, and no rank lives to tell.
std::shared_ptr<Communicator> make_mpi_world(const RankInfo& info, const std::shared_ptr<Store>& store,
                                             const CommOptions& options = {});

/// A store for ranks that mpirun has started: rank 0 serves it on a free port and tells the others port and secret by
/// MPI. When it is destroyed, rank 0 stays up to a second for the others, so that they can read of its failure. `log`
/// gets a line for each connection that is refused.
std::shared_ptr<Store> open_mpi_store(const RankInfo& info, const CommOptions& options, const LogLine& log = {});

}  // namespace caravan
