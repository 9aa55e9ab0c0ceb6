#pragma once

#include <cstdint>

#include "caravan/comm/algorithms/schedule.h"

namespace caravan::algorithms {

// At distances 1, 2, 4, .. ranks exchange all they have: after k steps each knows of 2^k ranks. n ranks, x bytes of the
// whole vector, k = floor(log2 n):
//
//                                  steps         bytes sent by a rank   16-bit sums
//   all_reduce, n a power of two   k             k x                    2k x
//   all_reduce, any other n        k + 2         (k + 1) x at most      (2k + 1) x at most
//   all_gather, any n              ceil(log2 n)  (n-1)/n x
//
// The fewest steps there can be. all_reduce is best for short vectors (on few ranks direct takes fewer still); sums are
// taken as a balanced tree of neighbouring ranks, by every rank for itself, in the same order on all. all_gather sends
// the least bytes as well, and is best until the messages to far ranks meet on shared links.
// all_reduce folds n to a power of two (fold.h). all_gather needs no power of two in the form of Bruck, in which rank r
// sends to r - d and receives from r + d; a range that goes past the last part travels as two messages.
// Sources: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, IJHPCA 19
// (2005); Bruck, Ho, Kipnis, Upfal and Weathersby, Efficient algorithms for all-to-all communications in multiport
// message-passing systems, TPDS 8 (1997).

Schedule recursive_doubling_all_reduce(int rank, int size, int64_t count);
Schedule recursive_doubling_all_gather(int rank, const Parts& parts);

}  // namespace caravan::algorithms
