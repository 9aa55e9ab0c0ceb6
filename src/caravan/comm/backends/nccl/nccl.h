#pragma once

#include <memory>

#include "caravan/comm/communicator.h"
#include "caravan/comm/options.h"
#include "caravan/comm/store/rendezvous.h"

namespace caravan {

/// The world of processes that use one CUDA device each (`info.local_rank`), by c10d's NCCL back-end. Every rank of
/// `info` calls it. Buffers are device memory. Operations are ordered on their Stream: an operation starts after
/// previous work on that stream, and after wait() later work on it, and the host, see the result. NCCL chooses the
/// order and precision of sums; every rank gets the same bits. Calls of different ranks are not compared: calls that
/// differ end in a time-out. Throws UsageError if the back-end is not built, CommError if a rank does not join in time.
std::shared_ptr<Communicator> make_nccl_world(const RankInfo& info, const std::shared_ptr<Store>& store,
                                              const CommOptions& options = {});

}  // namespace caravan
