#pragma once

#include <optional>
#include <string>
#include <vector>

#include "caravan/comm/communicator.h"
#include "caravan/formats/checkpoint/manifest.h"

namespace caravan {

/// Makes all ranks compute alike, and as before a resume: the library of matrix products is rank 0's choice, or that of
/// the checkpoint; the number of threads is that of the checkpoint if the recipe leaves it open and the number of ranks
/// is the same. Every rank calls it before its first product. `resumed`: of the checkpoint, on rank 0; `asked`:
/// comm.threads_per_rank, 0 for automatic. Returns what is in use; `notes` says on rank 0 what differs from the
/// checkpoint.
Numerics agree_on_numerics(Communicator& world, int64_t asked_threads, const std::optional<Numerics>& resumed,
                           std::vector<std::string>& notes);

}  // namespace caravan
