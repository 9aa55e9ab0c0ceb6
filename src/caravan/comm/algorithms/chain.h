#pragma once

#include <cstdint>

#include "caravan/comm/algorithms/message_plan.h"

namespace caravan::algorithms {

// root -> root + 1 -> root + 2 .. in segments: while a rank receives one it sends the previous one on. n ranks, x bytes
// in s segments:
//
//               steps                              bytes sent by a rank
//   broadcast   n - 2 + s; s by root and last      x, none by the last
//
// The time is (n - 2 + s)(alpha + beta x / s). It is least for s = sqrt((n - 2) beta x / alpha), and close to beta x
// for long vectors, whatever n is: best for them. With segments that are too short alpha dominates, with segments that
// are too long the chain does not fill: --tune measures several sizes.
// Source: Watts and van de Geijn, A pipelined broadcast for multidimensional meshes, Parallel Processing Letters 5
// (1995).

/// `segment`: the elements of each segment except the last.
MessagePlan chain_broadcast(int rank, int size, int64_t count, int root, int64_t segment);

}  // namespace caravan::algorithms
