#pragma once

#include <span>
#include <string>
#include <vector>

#include "caravan/comm/mpi_session.h"
#include "caravan/comm/rendezvous.h"

namespace caravan::mpi {

/// The MPIs that the back-end was built for: "openmpi", "mpich".
const std::vector<std::string>& built();

/// The one to load: `wish` (CARAVAN_MPI_LIBRARY, "" if it is not set), else the one whose mpirun `launcher` names ("":
/// none), else the first. A name of `built`, or a path. Throws UsageError if it is not built.
std::string choose(const std::string& wish, const std::string& launcher, std::span<const std::string> built);

/// "openmpi" or "mpich", as the environment shows; "" if no mpirun has started this process.
std::string launcher();

/// This process's MPI. Throws UsageError if its object is not there, or is not the one of the launcher, which has
/// started rank info.rank of info.world_size.
Session& session(const RankInfo& info);

}  // namespace caravan::mpi
