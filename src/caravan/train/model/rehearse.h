#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "caravan/cost/rehearsal.h"
#include "caravan/recipe/recipe.h"

namespace caravan {

/// Micro-batches that are rehearsed without a pipeline, at most: the first, one of those between, the last.
inline constexpr int64_t kRehearsedMicroBatches = 3;

/// A step of `rank` of `num_ranks` ranks by the recipe, whose train.micro_batch is a number (see BatchPlan for "auto"),
/// with the vocabulary of its model or `vocabulary`. Exact except as follows:
///   - of several micro-batches without a pipeline, only three are rehearsed: the others equal the second;
///   - all experts get equal loads, while in reality a rank may get up to all copies of the tokens;
///   - servers without a barrier are rehearsed with one: a worker's push and pull is a reduction and a gather, and
///     memory has all messages that may be in flight at once;
///   - rounds of ranks that step independently, and windows of stages without a flush, have Stepper::enough_steps();
///     bytes are the mean of a step of the run, whose evaluations and checkpoints end some of them early;
///   - stages are cut by FLOPs instead of measured costs;
///   - checkpoint.async: the copy is included, alongside the steps if any follow a checkpoint.
/// A rank of a later stage takes the shapes of its inputs from `numbers` of an earlier rehearsal; without them a rank
/// of the first stage is rehearsed first. Throws UsageError as plan_batch and make_strategy do.
Rehearsal rehearse(const Recipe& recipe, int64_t vocabulary, int num_ranks, int rank, int ranks_per_host = 0,
                   const std::shared_ptr<RecordedNumbers>& numbers = std::make_shared<RecordedNumbers>());

/// Whether a rehearsal steps as the run does. If not, asynchronous steps are rehearsed with a barrier.
bool rehearses_own_steps(const Recipe& recipe);

/// Ranks that include one with the highest memory need: all, if there are few; else the first and the last on the axis
/// dp, where servers come first, of one pipeline coordinate among those with equal numbers of layers: the one that
/// keeps the most activations. Throws UsageError as plan_batch.
std::vector<int> telling_ranks(const Recipe& recipe, int num_ranks);
/// The rehearsals of these ranks, in order.
std::vector<Rehearsal> rehearse_telling_ranks(const Recipe& recipe, int64_t vocabulary, int num_ranks,
                                              int ranks_per_host = 0);

}  // namespace caravan
