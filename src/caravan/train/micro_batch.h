#pragma once

#include <cstdint>
#include <string>

#include "caravan/comm/communicator.h"
#include "caravan/plan/memory.h"
#include "caravan/train/recipe.h"

namespace caravan {

/// What is estimated for one rank of a recipe, before anything is allocated.
struct MemoryPlan {
  MemoryShape shape;        ///< with the micro-batch that the recipe says or that was chosen
  double peak_bytes = 0;    ///< estimate of this shape
  int64_t limit_bytes = 0;  ///< this rank's share of the host's memory; 0: unknown
  bool is_chosen = false;   ///< train.micro_batch is "auto"
};

/// The memory of a rank's tensors when `ranks_on_host` share a host of `host_bytes`: 0 if that is 0 (unknown).
int64_t memory_share(int64_t host_bytes, int ranks_on_host) noexcept;

/// The plan of `recipe` on `num_ranks` ranks whose memory is `limit_bytes` each. train.micro_batch = "auto" becomes the
/// largest divisor of a rank's sequences whose estimate is at most 80 % of the limit, else 1; a number is taken as it
/// is. Throws ResourceError if "auto" does not fit even with 1 sequence at a time; UsageError as plan_batch.
MemoryPlan plan_memory(const Recipe& recipe, int64_t vocabulary, int num_ranks, int64_t limit_bytes);

/// Replaces train.micro_batch = "auto" of `recipe` by a number, the same on every rank: the rank with the least memory
/// decides. Returns the plan, with the memory of that rank. Every rank of `world` calls it. Errors as plan_memory.
MemoryPlan resolve_micro_batch(Recipe& recipe, int64_t vocabulary, Communicator& world);

}  // namespace caravan
