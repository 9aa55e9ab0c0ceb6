#pragma once

#include <cstdint>

#include "caravan/module/dim_index.h"

namespace caravan {

/// The order in which a causal sequence is split over n coordinates so that all have the same work: the sequence is 2n
/// chunks, and coordinate k has the chunks k and 2n-1-k. Equal parts of this order are what the coordinates have.
/// (Grattafiori et al., "The Llama 3 herd of models", 2024, 3.3.2; Brandon et al., "Striped attention", 2023.)
///
/// A pure function. n = 1: 0, 1, .. Throws ShapeError, naming the nearest lengths, if 2n does not divide the length
/// (n > 1).
DimIndex zigzag_order(int64_t length, int n);

}  // namespace caravan
