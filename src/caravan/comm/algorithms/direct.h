#pragma once

#include <cstdint>
#include <span>

#include "caravan/comm/algorithms/schedule.h"

namespace caravan::algorithms {

// Each message goes straight to the rank that needs it. Reductions are taken by the rank that owns a part of the
// result, from the inputs themselves: in the order of ranks, with one rounding. n ranks, x bytes of the whole vector:
//
//                   steps  messages    bytes sent by a rank
//   reduce_scatter  1      n - 1       (n-1)/n x
//   all_gather      1      n - 1       (n-1)/n x (each rank its own part n - 1 times)
//   all_reduce      2      2(n - 1)    2 (n-1)/n x
//   reduce          2      n           x (the root: (n-1)/n x)
//   broadcast       1      n - 1       (n-1) x by the root, 0 by the others
//   all_to_all      1      n - 1       x less its own part
//
// No partial sum travels, so that 16-bit floats stay 16 bits wide: it is the least data of all algorithms for them, and
// the only one whose sums do not depend on n beyond their order. Best on few ranks, where n - 1 messages at a time cost
// no more than one; on many, every rank is connected to every other, messages are small and meet at their receivers.
// broadcast is for two ranks or short vectors. Source: the pairwise exchange of Thakur, Rabenseifner and Gropp,
// Optimization of collective communication operations in MPICH, IJHPCA 19 (2005), with all pairs at once.

Schedule direct_all_reduce(int rank, const Parts& parts);
Schedule direct_all_gather(int rank, const Parts& parts);
Schedule direct_reduce_scatter(int rank, const Parts& parts);
Schedule direct_all_to_all(int rank, std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts);
Schedule direct_broadcast(int rank, int size, int64_t count, int root);
Schedule direct_reduce(int rank, const Parts& parts, int root);

}  // namespace caravan::algorithms
