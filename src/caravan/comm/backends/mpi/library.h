#pragma once

#include <span>
#include <string>
#include <vector>

#include "caravan/comm/backends/mpi/mpi_session.h"
#include "caravan/comm/store/rendezvous.h"

namespace caravan::mpi {

/// The MPIs that the back-end was built for, such as "openmpi" and "mpich".
const std::vector<std::string>& built();

/// The MPI to load, a name in `built` or a path: `requested` (CARAVAN_MPI_LIBRARY) unless it is "", otherwise that of
/// `launcher` unless it is "", otherwise the first one. Throws UsageError if it is not built.
std::string choose(const std::string& requested, const std::string& launcher, std::span<const std::string> built);

/// "openmpi" or "mpich", from the environment; "" if this process was not started by mpirun.
std::string launcher();

/// The MPI of this process. Throws UsageError if its library cannot be loaded, or if the rank and size that it reports
/// are not those of `info`: then the launcher belongs to another MPI.
MpiSession& session(const RankInfo& info);

}  // namespace caravan::mpi
