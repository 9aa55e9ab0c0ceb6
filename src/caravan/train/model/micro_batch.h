#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "caravan/comm/communicator.h"
#include "caravan/cost/memory_bytes.h"
#include "caravan/cost/process_memory.h"
#include "caravan/cost/rehearsal.h"
#include "caravan/recipe/recipe.h"

namespace caravan {

/// The peak memory of one rank of a recipe, by a rehearsal.
struct RankPeak {
  MemoryBytes peak{};
  int rank = 0;
  std::string event{};     ///< what it does at the peak: "backward blocks.3 of micro-batch 1"
  int64_t held_bytes = 0;  ///< of the fullest process, for tensors
  MemoryBytes host{};      ///< in host memory beyond the device
  int64_t disk_bytes = 0;
  Rehearsal::Moved moved{};  ///< between tiers, in a step
  ChunkReport chunks{};
};

/// The predicted memory of the rank of a recipe that needs the most, before anything is allocated.
struct MemoryPlan {
  int64_t micro_batch = 1;  ///< sequences, as given in the recipe or chosen
  RankPeak fullest{};
  RankPeak own{};              ///< of this rank (resolve_micro_batch)
  int64_t resident_bytes = 0;  ///< of all processes of the run (resolve_micro_batch)
  int64_t limit_bytes = 0;     ///< the rank's share of the host's memory, or its budget if less; 0: unknown
  int64_t usable_bytes = 0;    ///< of these, what "auto" uses
  bool is_chosen = false;      ///< train.micro_batch was "auto"
  std::string advice{};        ///< what to do if it does not fit
  int64_t peak_bytes() const noexcept { return fullest.peak.total(); }
  bool fits() const noexcept { return limit_bytes <= 0 || peak_bytes() <= limit_bytes; }
  bool is_usable() const noexcept { return limit_bytes <= 0 || peak_bytes() <= usable_bytes; }
};

/// "60 MiB of 3.9 GiB per rank at most, rank 0 in backward blocks.3 of micro-batch 1".
std::string memory_needs(const MemoryPlan& plan);
/// The same, and whether it is close to the limit, or what to do if it exceeds the limit.
std::string memory_text(const MemoryPlan& plan);

/// The peak of the fullest rank for a number of sequences in a micro-batch.
using PeakOf = std::function<RankPeak(int64_t micro_batch)>;

/// The plan of `recipe` on `num_ranks` ranks whose memory is `limit_bytes` each. A number in train.micro_batch is used
/// even if its peak exceeds the limit. "auto" becomes `before`, the number of the resumed checkpoint (0: none), if it
/// divides a rank's sequences and its peak is within the limit, so that the resumed run has the same sums. Otherwise it
/// becomes the largest divisor whose peak is at most 80 % of the limit, else 1. Evaluates few peaks. Throws
/// ResourceError if "auto" does not fit even with 1 sequence at a time, or if parameters, gradients and optimizer state
/// alone exceed the limit. Throws UsageError as plan_batch.
///
/// `is_budget`: the limit is one of the tensors alone (offload.device_budget): all of it may be used, and check_budget
/// refuses what exceeds it.
MemoryPlan plan_memory(const Recipe& recipe, int num_ranks, int64_t limit_bytes, int64_t before, const PeakOf& peak_of,
                       bool is_budget = false);

/// The fullest of some rehearsals. Sizes too large for any tensor are not an error here, but a peak that fits nowhere.
RankPeak fullest_of(const std::function<std::vector<Rehearsal>()>& rehearse_some);
Recipe with_micro_batch(Recipe recipe, int64_t micro_batch);
/// With the smallest micro-batch, where the run may choose it.
Recipe with_least_micro_batch(const Recipe& recipe);

/// Replaces train.micro_batch of `recipe` by the number of plan_memory, the same on every rank: each rehearses its own
/// step, and the rank with the least memory decides. `before` may be known to one rank only; the others pass 0. Returns
/// the plan, with the memory of that rank. Every rank of `world` calls it. Errors as plan_memory, on every rank.
MemoryPlan resolve_micro_batch(Recipe& recipe, int64_t vocabulary, Communicator& world, int64_t before = 0);

}  // namespace caravan
