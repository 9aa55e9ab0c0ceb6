#include "caravan/schedule/pipeline.h"

#include <gtest/gtest.h>

#include "caravan/registry/registry.h"
#include "tests/schedule/pipeline_order.h"

namespace caravan::testing::pipeline_test {
namespace {

PipelineChoice choice_of(const std::string& schedule, int64_t ranks, int64_t chunks = 2) {
  const bool has_chunks = schedule == "interleaved" || schedule == "zb-v";
  return pipeline_of(schedule, ranks, has_chunks ? chunks : 1);
}

/// How long each rank waits in a step (for zb-h2 and zb-v: between its first and its last pass) where all stages cost
/// `cost` (Qi et al., arXiv 2401.10241, table 1):
///   naive           m (p-1)(F+B+W)
///   gpipe, 1f1b     (p-1)(F+B+W)
///   interleaved     (p-1)(F+B+W), of one of its smaller stages
///   zb-h1           (p-1)(F+B-W), if m >= p and F >= W, B >= W
///   zb-h2, zb-v     0, if m >= 2p-1 and F = B = W
///   pipedream(-2bw) (p-1)(F+B+W) in a window of any number of steps: while it fills and drains
/// Nothing for other conditions.
std::optional<double> bubble_formula(const PipelineChoice& choice, int64_t num_micro_batches, const StageCost& cost) {
  const auto p = static_cast<double>(choice.degree);
  const auto m = static_cast<double>(num_micro_batches);
  const double all = cost.forward + cost.backward + cost.weight;
  const bool is_even = cost.forward == cost.backward && cost.backward == cost.weight;
  if (choice.name() == "naive") return m * (p - 1) * all;
  if (choice.name() == "zb-h1") {
    const bool waits_for_weights = cost.forward >= cost.weight && cost.backward >= cost.weight;
    return m >= p && waits_for_weights ? std::optional((p - 1) * (all - 2 * cost.weight)) : std::nullopt;
  }
  if (choice.name() == "zb-h2" || choice.name() == "zb-v") {
    return m >= 2 * p - 1 && is_even ? std::optional(0.0) : std::nullopt;
  }
  return (p - 1) * all;
}

Timeline simulated(const PipelineChoice& choice, int micro_batches, const StageCost& cost) {
  const PipelineOrder order = pipeline_order(choice, micro_batches);
  return simulate(order, std::vector<StageCost>(static_cast<size_t>(order.num_stages()), cost));
}

/// The formulas count the idle time of the whole step; zb-h2 and zb-v leave the ranks skewed and do not wait inside it.
TEST(Bubble, MatchesTheFormula) {
  const std::vector<StageCost> costs{
      {}, {.forward = 1, .backward = 1.5, .weight = 1}, {.forward = 2, .backward = 3, .weight = 1.5}};
  for (const std::string& schedule : names_of("pipeline")) {
    for (int p = 2; p <= 8; ++p) {
      for (const int m : {1, p - 1, p, 2 * p - 1, 2 * p, 3 * p, 32}) {
        for (const StageCost& cost : costs) {
          const PipelineChoice choice = choice_of(schedule, p);
          if (choice.misfit({.layers = 100}, m)) continue;
          const auto formula = bubble_formula(choice, m, cost);
          if (!formula) continue;
          const Timeline timeline = simulated(choice, m, cost);
          for (const Timeline::Rank& rank : timeline.ranks) {
            const bool is_skewed = schedule == "zb-h2" || schedule == "zb-v";
            const double idle = is_skewed ? rank.idle_inside() : timeline.total - rank.busy;
            EXPECT_NEAR(idle, *formula, 1e-9) << schedule << " p " << p << " m " << m << " F " << cost.forward;
          }
        }
      }
    }
  }
}

TEST(Bubble, OfInterleavedStagesIsSmallerByTheirNumber) {
  const double whole = *bubble_formula(choice_of("1f1b", 4), 8, {});
  for (const int v : {2, 3, 4}) {
    const double third = 1. / v;
    const StageCost part{.forward = third, .backward = third, .weight = third};
    const Timeline timeline = simulated(choice_of("interleaved", 4, v), 8, part);
    EXPECT_NEAR(timeline.total - timeline.ranks[0].busy, whole / v, 1e-9);
  }
}

/// In micro-batches of a stage. interleaved holds 1 + (p-1)/(pv) times as many as 1F1B, zb-v as many.
TEST(HeldActivations, MatchTheTable) {
  const auto held = [](const PipelineChoice& choice, int m) {
    std::vector<int64_t> all;
    for (const HeldActivations& rank : held_activations(pipeline_order(choice, m))) all.push_back(rank.activations);
    return all;
  };
  for (int p = 2; p <= 8; ++p) {
    for (const int m : {1, p, 4 * p}) {
      for (int rank = 0; rank < p; ++rank) {
        const auto at = static_cast<size_t>(rank);
        EXPECT_EQ(held(choice_of("naive", p), m)[at], 1);
        EXPECT_EQ(held(choice_of("gpipe", p), m)[at], m);
        EXPECT_EQ(held(choice_of("1f1b", p), m)[at], std::min(p - rank, m));
        EXPECT_EQ(held(choice_of("pipedream", p), m)[at], std::min(p - rank, m));
        EXPECT_EQ(held(choice_of("zb-h1", p), m)[at], std::min(p, m));
        EXPECT_EQ(held(choice_of("zb-h2", p), m)[at], std::min(2 * p - 1, m));
        EXPECT_LE(held(choice_of("zb-v", p), m)[at], std::min(2 * p, 2 * m));
        EXPECT_EQ(held(choice_of("zb-v", p), 4 * p)[at], 2 * p);
      }
      for (const int v : {2, 3}) {
        if (m % p != 0) continue;
        EXPECT_EQ(held(choice_of("interleaved", p, v), m)[0], std::min(m * v, p * v + p - 1)) << p << " " << m;
      }
    }
  }
}

TEST(HeldActivations, OfARecomputedStageAreItsInputs) {
  const auto held = held_activations(with_recompute(order_of("gpipe", 4, 8)));
  for (const HeldActivations& rank : held) {
    EXPECT_EQ(rank.activations, 1);
    EXPECT_EQ(rank.inputs, 8);
  }
  EXPECT_EQ(held_activations(with_recompute(order_of("1f1b", 4, 8)))[3].inputs, 0) << "its backward follows at once";
  EXPECT_EQ(held_activations(with_recompute(order_of("1f1b", 4, 8)))[0].inputs, 4);
}

/// A recompute comes before the receive of its gradient, so it runs until the gradient arrives.
TEST(Recompute, FillsTheBubble) {
  const std::vector<StageCost> costs(4);
  const Timeline timeline = simulate(with_recompute(order_of("1f1b", 4, 8)), costs);
  const double work = 8 * 3 + 8;  // of the first rank, with recompute
  EXPECT_LT(timeline.total - work, 9 + 3) << "less than the bubble of backwards that recompute first";
  EXPECT_LT(timeline.total, simulate(order_of("1f1b", 4, 8), std::vector<StageCost>(4, {.backward = 2})).total);
}

TEST(Simulation, CountsWhatRanksSend) {
  const Timeline timeline = simulated(choice_of("1f1b", 3), 5, {});
  EXPECT_EQ(timeline.ranks[0].num_sent, 5);
  EXPECT_EQ(timeline.ranks[1].num_sent, 10);
  const Timeline v = simulated(choice_of("zb-v", 3), 5, {});
  EXPECT_EQ(v.ranks[2].num_sent, 10) << "the turn of the V stays on its rank";
}

}  // namespace
}  // namespace caravan::testing::pipeline_test
