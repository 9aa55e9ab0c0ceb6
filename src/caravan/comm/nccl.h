#pragma once

#include <memory>

#include "caravan/comm/communicator.h"
#include "caravan/comm/options.h"
#include "caravan/comm/rendezvous.h"

namespace caravan {

/// Whether this build has the back-end nccl (CMake option CARAVAN_NCCL).
bool nccl_is_built() noexcept;

/// The world of processes with one CUDA device each, by NCCL through c10d: device `info.local_rank`. Every rank of
/// `info` calls it. Buffers are device memory, each operation is ordered on the Stream it is given: it begins after
/// what is on that stream, and after wait() what comes next on it sees the result, as does the host.
/// Sums are NCCL's: the same bits on every rank, their order is not that of the ranks; bf16 and fp16 are added as NCCL
/// does. The ranks' calls are compared by nobody: calls that differ end as a time-out. Throws UsageError if it is not
/// built, CommError if a rank does not come in time.
std::shared_ptr<Communicator> make_nccl_world(const RankInfo& info, const std::shared_ptr<Store>& store,
                                              const CommOptions& options = {});

}  // namespace caravan
