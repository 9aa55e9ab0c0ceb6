#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "caravan/cost/rehearsal.h"
#include "caravan/train/recipe.h"

namespace caravan {

/// A step of `rank` of `num_ranks` ranks by the recipe, whose train.micro_batch is a number (see BatchPlan for "auto"),
/// with the vocabulary of its model or `vocabulary`. What is exact, and what is not:
///   - of several micro-batches without a pipeline three are rehearsed: the others are like the second;
///   - every expert is chosen alike, where real loads differ: a rank may get up to all copies of the tokens;
///   - servers without a barrier are rehearsed with one: a worker's push and pull is a reduction and a gather, and what
///     several workers may have on its way at once is not counted;
///   - rounds of ranks that step apart: one of two steps, of which the further ones are like the second;
///   - stages without a flush: a window of a few steps; bytes are those of a step;
///   - stages that are cut by measured costs: by FLOPs;
///   - checkpoint.async: the copy is there.
/// A rank of a later stage is told the shapes of its inputs by `numbers` of an earlier rehearsal; without them one of
/// the first stage is rehearsed before it. Throws UsageError as plan_batch and make_strategy do.
Rehearsal rehearse(const Recipe& recipe, int64_t vocabulary, int num_ranks, int rank, int ranks_per_host = 0,
                   const std::shared_ptr<RecordedNumbers>& numbers = std::make_shared<RecordedNumbers>());

/// Ranks among which is one that needs the most memory: all of few ranks; else the first and the last of each stage (of
/// many stages, the first, the last and some between) on the axis dp, where servers come first.
std::vector<int> telling_ranks(const Recipe& recipe, int num_ranks);
/// The rehearsals of these, in order.
std::vector<Rehearsal> rehearse_telling_ranks(const Recipe& recipe, int64_t vocabulary, int num_ranks,
                                              int ranks_per_host = 0);

}  // namespace caravan
