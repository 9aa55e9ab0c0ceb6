#pragma once

#include <cstdint>

#include "caravan/comm/algorithms/message_plan.h"

namespace caravan::algorithms {

// At distances 1, 2, 4, .. ranks exchange everything they have: after k steps each has the data of 2^k ranks. n ranks,
// x bytes of the whole vector, k = floor(log2 n):
//
//                                  steps         bytes sent by a rank   16-bit sums
//   all_reduce, n a power of two   k             k x                    2k x
//   all_reduce, any other n        k + 2         (k + 1) x at most      (2k + 1) x at most
//   all_gather, any n              ceil(log2 n)  (n-1)/n x
//
// The minimum of steps without n - 1 messages at a time. all_reduce is best for short vectors; every rank computes the
// sums itself, as a balanced tree of neighbouring ranks, in the same order on all ranks. all_gather also sends the
// fewest bytes, and is best until the messages to distant ranks share links.
// all_reduce folds n to a power of two (fold.h). all_gather uses Bruck's form, which works for any n: rank r sends to r
// - d and receives from r + d; a range that wraps around is sent as two messages.
// Sources: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, IJHPCA 19
// (2005); Bruck, Ho, Kipnis, Upfal and Weathersby, Efficient algorithms for all-to-all communications in multiport
// message-passing systems, TPDS 8 (1997).

MessagePlan recursive_doubling_all_reduce(int rank, int size, int64_t count);
MessagePlan recursive_doubling_all_gather(int rank, const Parts& parts);

}  // namespace caravan::algorithms
