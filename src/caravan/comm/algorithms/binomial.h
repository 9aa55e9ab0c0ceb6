#pragma once

#include <cstdint>

#include "caravan/comm/algorithms/schedule.h"

namespace caravan::algorithms {

// A tree: in each step every rank that has the vector gives it to one that has not, half the ring away, then a quarter,
// .. reduce is the same backwards, with sums. n ranks, x bytes, k = ceil(log2 n):
//
//               steps  bytes sent by a rank               16-bit sums
//   broadcast   k      k x by the root, x/2 on average
//   reduce      k      x by all but the root              2x by all but the root
//
// Messages together: n - 1, the fewest there can be. Best for short vectors: a long one waits at every rank until it is
// complete, where a chain passes segments on. Sums are taken as a tree of neighbours in the order of ranks counted from
// the root; the same in every run with this root.
// Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, IJHPCA 19
// (2005).

Schedule binomial_broadcast(int rank, int size, int64_t count, int root);
Schedule binomial_reduce(int rank, int size, int64_t count, int root);

}  // namespace caravan::algorithms
