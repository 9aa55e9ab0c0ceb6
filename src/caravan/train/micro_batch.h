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
  bool is_chosen = false;   ///< train.micro_batch was "auto"
};

/// The memory of a rank's tensors when `ranks_on_host` share a host of `host_bytes`: 0 if that is 0 (unknown).
int64_t memory_share(int64_t host_bytes, int ranks_on_host) noexcept;

/// "about 60 MiB of 3.9 GiB per rank", and whether that is close to the limit or above it.
std::string memory_text(const MemoryPlan& plan);
/// The second half of memory_text: what the user should know; "" if there is memory to spare.
std::string memory_note(const MemoryPlan& plan);

/// The plan of `recipe` on `num_ranks` ranks whose memory is `limit_bytes` each; `shares_memory`: they can read each
/// other's. A number of train.micro_batch is taken
/// as it is, also if its estimate exceeds the limit: see memory_note. "auto" becomes `before`, the number of the
/// checkpoint that is resumed (0: none), if that divides a rank's sequences and its estimate is within the limit: then
/// the resumed run has the same sums. Otherwise it becomes the largest divisor whose estimate is at most 80 % of the
/// limit, else 1. Throws ResourceError if "auto" does not fit even with 1 sequence at a time, or if no number can help:
/// parameters, gradients and the optimizer alone exceed the limit. Throws UsageError as plan_batch.
MemoryPlan plan_memory(const Recipe& recipe, int64_t vocabulary, int num_ranks, int64_t limit_bytes, int64_t before = 0,
                       bool shares_memory = false);

/// Replaces train.micro_batch of `recipe` by the number of plan_memory, the same on every rank: the rank with the least
/// memory decides. `before` may be known to one rank only; the others give 0. Returns the plan, with the memory of that
/// rank. Every rank of `world` calls it. Errors as plan_memory.
MemoryPlan resolve_micro_batch(Recipe& recipe, int64_t vocabulary, Communicator& world, int64_t before = 0);

}  // namespace caravan
