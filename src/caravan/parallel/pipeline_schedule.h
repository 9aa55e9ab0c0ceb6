#pragma once

#include <cstdint>
#include <vector>

#include "caravan/engine/schedule.h"
#include "caravan/parallel/pipeline_choice.h"

namespace caravan {

/// A pipeline schedule: what each rank of the axis pp does in a step, and which stages it holds.
struct PipelineOrder {
  std::vector<PassOrder> ranks;    ///< by coordinate
  std::vector<int> rank_of_stage;  ///< by stage
  int num_stages() const noexcept { return static_cast<int>(rank_of_stage.size()); }
};

// The schedules of the field, each a pure function of p ranks and m micro-batches. F, B, W: the time of a stage's
// forward, its input gradients, its weight gradients. A bubble is the time in which a rank waits, from the start of the
// step to its end; activations are counted in micro-batches of a stage, on stage s (plan/pipeline.h has both).

/// One micro-batch at a time is in the whole pipeline: model parallelism without one.
/// Bubble m (p-1)(F+B+W), activations 1.
PipelineOrder naive(int num_ranks, int num_micro_batches);

/// All forwards, then all backwards (Huang et al., arXiv 1811.06965).
/// Bubble (p-1)(F+B+W), activations m.
PipelineOrder gpipe(int num_ranks, int num_micro_batches);

/// A backward as soon as its gradient is there, and a forward in between: PipeDream with a flush (Narayanan et al.,
/// arXiv 2104.04473, section 2.2). Bubble (p-1)(F+B+W), activations min(p-s, m).
PipelineOrder one_f_one_b(int num_ranks, int num_micro_batches);

/// 1F1B over v stages a rank: stage s is on rank s % p, and groups of p micro-batches go through one after another (the
/// same, section 2.2.2). Bubble (p-1)(F+B+W) of one of these smaller stages; activations of rank 0 p v + p - 1 of them,
/// or m v. Throws UsageError unless m is a multiple of p.
PipelineOrder interleaved(int num_ranks, int num_micro_batches, int stages_per_rank);

/// Zero bubble (Qi et al., arXiv 2401.10241): weight gradients wait, and fill the bubble. h1 holds the activations of
/// 1F1B's first stage, p, on every rank: bubble (p-1)(F+B-W) if m is at least p. h2 holds 2p-1: if m is at least that,
/// a rank waits (p-1)(F+B-2W) at most between its first and its last pass, not at all where this is below 0, as for
/// F = B = W. Both need a W that is no longer than F and B.
PipelineOrder zero_bubble_h1(int num_ranks, int num_micro_batches);
PipelineOrder zero_bubble_h2(int num_ranks, int num_micro_batches);

/// Two stages a rank, in a V: rank r holds the stages r and 2p-1-r, so the loss is on rank 0 (Qi et al., arXiv
/// 2405.15362). No rank waits between its first and its last pass if F = B = W and m is at least 2p-1; activations 2p
/// of these half stages.
PipelineOrder zero_bubble_v(int num_ranks, int num_micro_batches);

/// PipeDream (Narayanan et al., SOSP 2019): m mini-batches in the order of 1F1B, each followed by an update of the
/// stage alone. Stage s computes mini-batch t, forward and backward, with the weights after max(0, t - (p-1-s))
/// updates, of which it keeps up to p-s versions. Waits while it fills and drains only: (p-1)(F+B+W).
PipelineOrder pipedream(int num_ranks, int num_micro_batches);

/// PipeDream-2BW (Narayanan et al., arXiv 2006.09503): `num_batches` batches of m micro-batches in the order of 1F1B,
/// an update of the stage after the last backward of each. All of batch t is computed with the weights after max(0,
/// t-1) updates: two versions. m is at least p.
PipelineOrder pipedream_2bw(int num_ranks, int num_micro_batches, int num_batches);

/// The schedule that a recipe names, over its `degree` ranks; of pipedream-2bw batches of choice.micro_batches. Throws
/// UsageError for one that does not exist, naming the nearest, and for numbers that it has no table for. `recompute`:
/// with_recompute of it.
PipelineOrder pipeline_order(const PipelineChoice& choice, int num_micro_batches, bool recompute = false);

/// The rank that holds each stage, whatever the number of micro-batches.
std::vector<int> ranks_of_stages(const PipelineChoice& choice);

/// Lets every stage keep its input alone and run its forward again (C), right before the backward: where that waits for
/// a gradient, the recompute runs in the bubble. Not for a forward whose backward follows at once.
PipelineOrder with_recompute(PipelineOrder order);

/// The most that a rank holds at once, from the forward of a stage to its backward (or W, where it has one).
struct HeldActivations {
  int64_t activations = 0;  ///< of micro-batches, in units of one stage's
  int64_t inputs = 0;       ///< of stages that keep their input alone
};
std::vector<HeldActivations> held_activations(const PipelineOrder& order);

}  // namespace caravan
