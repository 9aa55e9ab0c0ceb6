#pragma once

#include <cstdint>
#include <vector>

#include "caravan/registry/compose.h"

namespace caravan {

/// What of a run its techniques have to bear, beside each other.
struct Load {
  int64_t tp = 1, cp = 1, ep = 1, pp = 1;  ///< degrees of the axes that split the model
  bool computes_in_fp16 = false;
  bool keeps_16_bit_gradients = false;
  bool reduces_in_16_bits = false;
};

std::vector<Demand> demands_of(const Load& load);

}  // namespace caravan
