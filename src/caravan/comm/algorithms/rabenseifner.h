#pragma once

#include <cstdint>

#include "caravan/comm/algorithms/schedule.h"

namespace caravan::algorithms {

// Recursive halving, then doubling: at distances n/2, .., 2, 1 two ranks share the range they work on, each gives away
// one half and adds the other; then they put the complete parts together again at distances 1, 2, .., n/2. n ranks, x
// bytes, k = floor(log2 n), m = 2^k:
//
//                      steps    bytes sent by a rank        16-bit sums
//   n a power of two   2k       2 (m-1)/m x                 3 (m-1)/m x
//   any other n        2k + 2   2 (m-1)/m x + x at most     3 (m-1)/m x + x at most
//
// The bytes of a ring in few steps: best for middle-sized and large vectors on a power of two of ranks. Another n is
// folded (fold.h): ranks that stand aside send x and receive x more, so that a ring is better for large vectors there.
// The vector is cut into m nearly equal parts; the first step sends the longest range the farthest. Sums are taken as a
// tree of pairs that lie n/2, then n/4, .. apart: one order for all ranks, since each part is summed once.
// Source: Rabenseifner, Optimization of collective reduction operations, ICCS 2004.

Schedule rabenseifner_all_reduce(int rank, int size, int64_t count);

}  // namespace caravan::algorithms
