#pragma once

#include <cstdint>

#include "caravan/comm/types.h"

namespace caravan::measure {

// `bytes` is always the whole: of all_gather what comes out, of reduce_scatter and all_to_all what a rank puts in, else
// the buffer. Definitions of nccl-tests (doc/PERFORMANCE.md).

/// Bus bandwidth = this x algorithm bandwidth (bytes / time): 2(n-1)/n for all_reduce, (n-1)/n for all_gather,
/// reduce_scatter and all_to_all, 1 for the others, 0 for a barrier.
double bus_factor(Verb verb, int num_ranks) noexcept;

/// Bytes that all ranks of one host together must read and write when each reads its peers' buffers in place:
/// all_reduce 2n x, all_gather and broadcast 2(n-1) x, reduce_scatter and reduce (n+1) x, all_to_all 2n x, send 2n x (a
/// ring), recv 2 x a pair; 0 for a barrier.
int64_t memory_bytes(Verb verb, int num_ranks, int64_t bytes) noexcept;

}  // namespace caravan::measure
