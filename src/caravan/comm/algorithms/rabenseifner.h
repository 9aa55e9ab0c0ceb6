#pragma once

#include <cstdint>

#include "caravan/comm/algorithms/message_plan.h"

namespace caravan::algorithms {

// Recursive halving, then doubling: at distances n/2, .., 2, 1 two ranks halve the range that both work on: each sends
// one half and reduces the other. Then they exchange the complete parts at distances 1, 2, .., n/2. n ranks, x bytes,
// k = floor(log2 n), m = 2^k:
//
//                      steps    bytes sent by a rank        16-bit sums
//   n a power of two   2k       2 (m-1)/m x                 3 (m-1)/m x
//   any other n        2k + 2   2 (m-1)/m x + x at most     3 (m-1)/m x + x at most
//
// It sends as many bytes as a ring, in few steps: best for medium and large vectors if n is a power of two. Any other n
// is folded (fold.h): idle ranks send and receive x more, so a ring is better for large vectors there. The vector is
// cut into m nearly equal parts; the first step sends the longest range the farthest. Sums are a tree of pairs that are
// n/2, then n/4, .. apart: one order for all ranks, since each part is summed once.
// Source: Rabenseifner, Optimization of collective reduction operations, ICCS 2004.

MessagePlan rabenseifner_all_reduce(int rank, int size, int64_t count);

}  // namespace caravan::algorithms
