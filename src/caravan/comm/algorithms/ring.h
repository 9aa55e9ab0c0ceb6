#pragma once

#include "caravan/comm/algorithms/schedule.h"

namespace caravan::algorithms {

// Every rank talks to its two neighbours only. Part i of the sum starts at rank i + 1, takes each rank's part on its
// way around and ends at rank i; complete parts go around the same way. n ranks, x bytes of the whole vector:
//
//                   steps     bytes sent by a rank    16-bit sums
//   reduce_scatter  n - 1     (n-1)/n x               2 (n-1)/n x
//   all_gather      n - 1     (n-1)/n x
//   all_reduce      2(n - 1)  2 (n-1)/n x             3 (n-1)/n x
//
// Exactly, all_reduce sends 2x less parts r and r + 1. The bytes are the least possible, and no link carries more than
// another: best for large vectors on many ranks, where 2(n - 1) latencies are small beside x. Sums are taken around the
// ring, so that each part has its own order; it is the same in every run.
// Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 69 (2009).

Schedule ring_all_reduce(int rank, const Parts& parts);
Schedule ring_all_gather(int rank, const Parts& parts);
Schedule ring_reduce_scatter(int rank, const Parts& parts);

}  // namespace caravan::algorithms
