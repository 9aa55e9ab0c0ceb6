#pragma once

#include "caravan/techniques/context/ring_order.h"

namespace caravan {

/// Token i of a sequence is on coordinate i mod n. In every turn a rank computes a triangle of its part: query a sees
/// key b of a coordinate that is not after its own if b <= a, else if b < a. A sequence need only be a multiple of n,
/// and the kernel skips half of each block. (Brandon et al., "Striped attention: faster ring attention for causal
/// transformers", arXiv 2311.09431, 2023.)
RingOrder striped();

}  // namespace caravan
