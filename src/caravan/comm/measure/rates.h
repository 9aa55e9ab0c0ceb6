#pragma once

#include <cstdint>

#include "caravan/comm/types.h"

namespace caravan::measure {

// `bytes` is the size of the whole: the output of all_gather, the input of one rank for reduce_scatter and all_to_all,
// else the buffer. As defined by nccl-tests (doc/PERFORMANCE.md).

/// Ratio of bus bandwidth to algorithm bandwidth (bytes / time): 2(n-1)/n for all_reduce, (n-1)/n for all_gather,
/// reduce_scatter and all_to_all, 1 for the others, 0 for a barrier.
double bus_factor(Verb verb, int num_ranks) noexcept;

/// Bytes that all ranks of one host together read and write if each accesses its peers' buffers in place:
/// all_reduce 2n x, all_gather and broadcast 2(n-1) x, reduce_scatter and reduce (n+1) x, all_to_all 2n x, send 2n x (a
/// ring), recv 2 x a pair; 0 for a barrier.
int64_t memory_bytes(Verb verb, int num_ranks, int64_t bytes) noexcept;

}  // namespace caravan::measure
