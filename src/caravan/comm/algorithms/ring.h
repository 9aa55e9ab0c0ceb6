#pragma once

#include "caravan/comm/algorithms/message_plan.h"

namespace caravan::algorithms {

// Every rank exchanges messages with its two neighbours only. The sum of part i starts at rank i + 1, goes around the
// ring, where each rank adds its input, and ends at rank i; then complete parts go around in the same way. n ranks, x
// bytes of the whole vector:
//
//                   steps     bytes sent by a rank    16-bit sums
//   reduce_scatter  n - 1     (n-1)/n x               2 (n-1)/n x
//   all_gather      n - 1     (n-1)/n x
//   all_reduce      2(n - 1)  2 (n-1)/n x             3 (n-1)/n x
//
// Exactly, all_reduce sends 2x minus parts r and r + 1. This is the minimum of bytes, and all links carry the same
// load: best for large vectors on many ranks, where 2(n - 1) latencies are small compared with the transfer. Sums are
// taken around the ring, so each part has its own order, which is the same in every run.
// Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 69 (2009).

MessagePlan ring_all_reduce(int rank, const Parts& parts);
MessagePlan ring_all_gather(int rank, const Parts& parts);
MessagePlan ring_reduce_scatter(int rank, const Parts& parts);

}  // namespace caravan::algorithms
