#pragma once

#include <cstdint>
#include <span>

#include "caravan/comm/algorithms/message_plan.h"

namespace caravan::algorithms {

// Each message goes directly to the rank that needs it. The rank that owns a part of the result reduces the inputs
// themselves, in rank order, and rounds once. n ranks, x bytes of the whole vector:
//
//                   steps  messages    bytes sent by a rank
//   reduce_scatter  1      n - 1       (n-1)/n x
//   all_gather      1      n - 1       (n-1)/n x (each rank its own part n - 1 times)
//   all_reduce      2      2(n - 1)    2 (n-1)/n x
//   reduce          2      n           x (the root: (n-1)/n x)
//   broadcast       1      n - 1       (n-1) x by the root, 0 by the others
//   all_to_all      1      n - 1       x minus its own part
//
// No partial sums are sent, so 16-bit floats stay 16 bits wide: no other algorithm sends less for them. Best on few
// ranks, where n - 1 messages at a time cost no more than one. On many ranks every rank is connected to every other
// one, and many small messages arrive at the same receiver. broadcast is for two ranks or short vectors. Source: the
// pairwise exchange of Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH,
// IJHPCA 19 (2005), with all pairs at once.

MessagePlan direct_all_reduce(int rank, const Parts& parts);
MessagePlan direct_all_gather(int rank, const Parts& parts);
MessagePlan direct_reduce_scatter(int rank, const Parts& parts);
MessagePlan direct_all_to_all(int rank, std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts);
MessagePlan direct_broadcast(int rank, int size, int64_t count, int root);
MessagePlan direct_reduce(int rank, const Parts& parts, int root);

}  // namespace caravan::algorithms
