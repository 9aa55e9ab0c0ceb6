#pragma once

#include <cstdint>

#include "caravan/recipe/recipe.h"

namespace caravan {

/// Bytes of a checkpoint.
struct CheckpointSize {
  int64_t rank_bytes = 0;  ///< of the rank that writes the most
  int64_t total_bytes = 0;
};

/// That of a recipe, whose train.micro_batch is a number, on `num_ranks` ranks. Sends nothing.
CheckpointSize checkpoint_size(const Recipe& recipe, int64_t vocabulary, int num_ranks);

}  // namespace caravan
