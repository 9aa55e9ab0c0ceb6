#pragma once

#include <cstdint>

#include "caravan/comm/algorithms/schedule.h"

namespace caravan::algorithms {

// root -> root + 1 -> root + 2 .. in segments: while a rank receives one it passes on the one before. n ranks, x bytes
// in s segments:
//
//               steps                              bytes sent by a rank
//   broadcast   n - 2 + s; s by root and last      x, none by the last
//
// Time (n - 2 + s)(alpha + beta x / s), least for s = sqrt((n - 2) beta x / alpha), and near beta x for long vectors,
// whatever n is: best for them. Segments so short that alpha dominates, or so long that the chain does not fill, are
// the price of a wrong choice: --tune measures several.
// Source: Watts and van de Geijn, A pipelined broadcast for multidimensional meshes, Parallel Processing Letters 5
// (1995).

/// `segment`: elements of each but the last.
Schedule chain_broadcast(int rank, int size, int64_t count, int root, int64_t segment);

}  // namespace caravan::algorithms
