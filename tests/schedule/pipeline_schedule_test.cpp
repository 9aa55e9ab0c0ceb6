#include "caravan/schedule/pipeline_schedule.h"

#include <gmock/gmock.h>
#include <map>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/registry/registry.h"
#include "caravan/schedule/pipeline_file.h"
#include "tests/schedule/pipeline_order.h"

namespace caravan::testing::pipeline_schedule_test {
namespace {

using ::testing::HasSubstr;

template <class Run>
std::string error_of(const Run& run) {
  try {
    run();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

/// Calls `visit(order, choice, micro_batches)` for every schedule on 1 to 16 ranks with 1 to 32 micro-batches and up to
/// 4 stages a rank, wherever the schedule has a table.
template <class Visit>
void for_each_order(const Visit& visit) {
  size_t num_orders = 0;
  for (const std::string& schedule : names_of("pipeline")) {
    for (int ranks = 1; ranks <= 16; ++ranks) {
      for (int micro_batches = 1; micro_batches <= 32; ++micro_batches) {
        for (int chunks = 1; chunks <= 4; ++chunks) {
          const PipelineChoice choice = pipeline_of(schedule, ranks, chunks);
          if (choice.misfit({.layers = 1000}, choice.is_asynchronous() ? 0 : micro_batches)) continue;
          if (schedule == "pipedream-2bw" && micro_batches < ranks) continue;
          SCOPED_TRACE(
              fmt::format("{}, {} ranks, {} micro-batches, {} stages a rank", schedule, ranks, micro_batches, chunks));
          visit(pipeline_order(choice, micro_batches), choice, micro_batches);
          if (::testing::Test::HasFatalFailure()) return;
          ++num_orders;
        }
      }
    }
  }
  EXPECT_GT(num_orders, 400 * names_of("pipeline").size());
}

/// As check(PipelineOrder), for stages that step independently: their gradients are complete after each micro-batch.
void check_with_updates(const PipelineOrder& order) {
  Units units;
  for (int stage = 0; stage < order.num_stages(); ++stage) {
    units.units.push_back({.name = "u", .stage = stage, .groups = {stage}});
    units.groups.push_back({.name = "g"});
  }
  std::vector<Schedule> tables = expand(order.ranks, units, order.rank_of_stage);
  for (Schedule& table : tables) table = with_reductions(table, units, /*each_micro_batch=*/true);
  check(tables, units, order.rank_of_stage, /*capacity=*/1);
}

/// check() for every schedule: dependencies are met, messages of two ranks come in order, at most one of each kind is
/// in flight to a rank, and no rank waits forever.
TEST(Schedules, KeepTheRules) {
  for_each_order([](const PipelineOrder& order, const PipelineChoice& choice, int) {
    if (choice.is_asynchronous()) {
      ASSERT_NO_THROW(check_with_updates(order));
      return;
    }
    ASSERT_NO_THROW(check(order));
    ASSERT_NO_THROW(check(with_recompute(order)));
  });
}

/// Each pass once, weight gradients in any order but after their backward.
TEST(Schedules, DeferWeightGradientsOfAllOrNone) {
  for_each_order([](const PipelineOrder& order, const PipelineChoice& choice, int micro_batches) {
    for (const PassOrder& passes : order.ranks) {
      std::map<Pass::Kind, std::set<std::pair<int, int>>> done;
      for (const Pass& pass : passes) {
        if (pass.kind == Pass::Kind::update) continue;
        const std::pair key{pass.stage, pass.micro_batch};
        ASSERT_TRUE(done[pass.kind].insert(key).second);
        if (pass.kind == Pass::Kind::weight) {
          ASSERT_TRUE(done[Pass::Kind::backward].contains(key));
        }
      }
      const size_t all = std::size_t(micro_batches) * static_cast<size_t>(order.num_stages()) / order.ranks.size();
      ASSERT_EQ(done[Pass::Kind::forward].size(), all);
      ASSERT_EQ(done[Pass::Kind::weight].size(), choice.name().starts_with("zb") ? all : 0);
    }
  });
}

/// The bounds of pipeline_schedule.h, for every size.
TEST(Schedules, HoldNoMoreThanDocumented) {
  for_each_order([](const PipelineOrder& order, const PipelineChoice& choice, int m) {
    const auto p = static_cast<int64_t>(choice.degree);
    const int64_t v = order.num_stages() / p;
    const std::map<std::string, int64_t> of_rank_0{{"naive", 1}, {"gpipe", m},         {"interleaved", p * v + p - 1},
                                                   {"zb-h1", p}, {"zb-h2", 2 * p - 1}, {"zb-v", 2 * p}};
    const std::vector<HeldActivations> held = held_activations(order);
    for (int64_t rank = 0; rank < p; ++rank) {
      const auto bound = of_rank_0.find(choice.name());
      const int64_t most = bound == of_rank_0.end() ? p - rank : bound->second;  // 1f1b and what follows its order
      ASSERT_LE(held[static_cast<size_t>(rank)].activations, std::min(most, m * v)) << "rank " << rank;
      ASSERT_EQ(held[static_cast<size_t>(rank)].inputs, 0);
    }
  });
}

/// The file of a schedule is the schedule.
TEST(PipelineTable, RoundTrips) {
  for (const PipelineOrder& order : {order_of("1f1b", 3, 4), order_of("interleaved", 2, 4, 2), order_of("zb-v", 2, 3),
                                     with_recompute(order_of("gpipe", 2, 2))}) {
    const PipelineOrder read = parse_pipeline_table("# a comment\n\n" + to_text(order), "table.txt");
    EXPECT_EQ(read.ranks, order.ranks);
    EXPECT_EQ(read.rank_of_stage, order.rank_of_stage);
  }
}

TEST(PipelineTable, IsRefusedWithItsLine) {
  const auto error = [](const std::string& text) { return error_of([&] { parse_pipeline_table(text, "t.txt"); }); };
  EXPECT_THAT(error("rank 0: F0.0 B0.0\nrank 2: F1.0 B1.0\n"), HasSubstr("t.txt:2"));
  EXPECT_THAT(error("rank 0: F0.0 X0.0\n"), HasSubstr("'X0.0' is not a pass"));
  EXPECT_THAT(error("rank 0: F0.0 B0\n"), HasSubstr("'B0' is not a pass"));
  EXPECT_THAT(error("rank 0: F0.0 B0.0\nrank 1: F0.1 B0.1\n"), HasSubstr("stage 0 has passes on the ranks 0 and 1"));
  EXPECT_THAT(error("rank 0: F0.0 B0.0\nrank 1: F2.0 B2.0\n"), HasSubstr("there is a stage 2, but no stage 1"));
  EXPECT_THAT(error("rank 0:\n"), HasSubstr("rank 0 has no pass"));
  EXPECT_THAT(error("\n# nothing\n"), HasSubstr("there is no rank"));
  EXPECT_THAT(error("rank 0: F0.0 B0.0 F0.1\nrank 1: F1.0 B1.0\n"), HasSubstr("B0.1 is missing"));
  EXPECT_THAT(error("rank 0: F0.0 B0.0\nrank 1: B1.0 F1.0\n"), HasSubstr("comes before its forward"));
}

/// Rank 0 wants the gradient of micro-batch 0 before it sends 1; rank 1 wants 1 before it gives that back.
TEST(PipelineTable, OfADeadlockIsRefusedWithTheCycle) {
  const std::string error =
      error_of([] { parse_pipeline_table("rank 0: F0.0 B0.0 F0.1 B0.1\nrank 1: F1.0 F1.1 B1.0 B1.1\n", "t.txt"); });
  EXPECT_THAT(error, HasSubstr("rank 0, entry 2 (<g1.0@1)"));
  EXPECT_THAT(error, AllOf(HasSubstr("where: t.txt"), HasSubstr("<g1.0@1 its gradient")));
  EXPECT_THAT(error, HasSubstr("waits forever for rank 1, which waits at entry 2 (<1.1@0) for rank 0"));
}

/// Two ranks with two stages each send all inputs before they receive any: with one in flight, both are stuck.
TEST(PipelineTable, OfRanksThatSendTooMuchIsRefusedWithTheCycle) {
  Units units;
  std::vector<PassOrder> orders(2);
  const std::vector<int> rank_of_stage{0, 1, 0, 1};
  for (int stage = 0; stage < 4; ++stage) {
    units.units.push_back({.name = "u", .stage = stage});
    const PassOrder passes = forward_only(/*num_micro_batches=*/4, stage);
    PassOrder& order = orders[static_cast<size_t>(rank_of_stage[static_cast<size_t>(stage)])];
    order.insert(order.end(), passes.begin(), passes.end());
  }
  const std::vector<Schedule> tables = expand(orders, units, rank_of_stage);
  EXPECT_NO_THROW(check(tables, units, rank_of_stage, /*capacity=*/0));
  EXPECT_NO_THROW(check(tables, units, rank_of_stage, /*capacity=*/2));
  const std::string error = error_of([&] { check(tables, units, rank_of_stage, /*capacity=*/1); });
  EXPECT_THAT(error, HasSubstr("rank 0, entry 7 (>1.3@1)"));
  EXPECT_THAT(error, HasSubstr("waits forever for rank 1, which waits at entry 5 (>2.1@2) for rank 0"));
}

/// Tables with updates in the middle: each update needs its own backward, with its gradient reduced.
TEST(Asynchronous, UpdatesFollowWholeGradients) {
  const Units units{.units = {{.name = "u", .groups = {0}}}, .groups = {{.name = "g"}}};
  const auto error = [&](std::vector<Action> entries) { return error_of([&] { check({{entries}}, units); }); };
  using enum Action::Kind;
  const Action update_0{update, 0, 0};
  const Action update_1{update, 0, 1};
  const std::vector<Action> first{{forward, 0, 0}, {backward, 0, 0}, {reduce, 0, 0}};
  const auto then = [&](std::vector<Action> rest) {
    rest.insert(rest.begin(), first.begin(), first.end());
    return error(rest);
  };
  EXPECT_EQ(then({update_0, {forward, 0, 1}, {backward, 0, 1}, {reduce, 0, 1}, update_1}), "no error");
  EXPECT_EQ(then({{forward, 0, 1}, update_0, {backward, 0, 1}, {reduce, 0, 1}, update_1}), "no error");
  EXPECT_THAT(then({update_0, {forward, 0, 1}, update_1, {backward, 0, 1}, {reduce, 0, 1}, update_1}),
              HasSubstr("no backward comes before it, after the last update"));
  EXPECT_THAT(then({update_0, {forward, 0, 1}, {backward, 0, 1}, update_1, {reduce, 0, 1}}),
              HasSubstr("in micro-batch 1 is not reduced yet"));
  EXPECT_THAT(then({update_0, {forward, 0, 1}, {backward, 0, 1}, {reduce, 0, 1}}), HasSubstr("the update is missing"));
}

/// Checking this many micro-batches takes a second; with quadratic time it would take hours.
TEST(Asynchronous, TheCheckGrowsWithTheTableAlone) {
  const Units units{.units = {{.name = "a", .groups = {0}}, {.name = "b", .stage = 1, .groups = {1}}},
                    .groups = {{.name = "a"}, {.name = "b"}}};
  std::vector<Schedule> tables = expand(order_of("pipedream", 2, 20'000).ranks, units);
  for (Schedule& table : tables) table = with_reductions(table, units, /*each_micro_batch=*/true);
  EXPECT_NO_THROW(check(tables, units));
}

TEST(Interleaved, NeedsAMultipleOfTheRanks) {
  EXPECT_THAT(error_of([] { order_of("interleaved", 4, 6, 2); }), HasSubstr("use 8"));
}

TEST(Schedules, UnknownOnesNameTheNearest) {
  const std::string& name = first_of("pipeline").name;
  EXPECT_THAT(error_of([&] { Setting("pipeline", name.substr(0, name.size() - 1)); }),
              HasSubstr("the nearest is '" + name + "'"));
}

/// PipeDream: an update follows each backward; 2BW: the last backward of each batch.
TEST(Asynchronous, UpdateWithoutAFlush) {
  const PipelineOrder order = order_of("pipedream", 2, 2);
  EXPECT_EQ(to_text(order), "rank 0: F0.0 F0.1 B0.0 U0.0 B0.1 U0.1\nrank 1: F1.0 B1.0 U1.0 F1.1 B1.1 U1.1\n");
  EXPECT_EQ(to_text(order_of("pipedream-2bw", 1, 4, 0, 2)),
            "rank 0: F0.0 B0.0 F0.1 B0.1 U0.1 F0.2 B0.2 F0.3 B0.3 U0.3\n");
  EXPECT_THAT(error_of([] { order_of("pipedream-2bw", 4, 6, 0, 3); }),
              HasSubstr("batches of 3 micro-batches for 4 ranks"));
}

}  // namespace
}  // namespace caravan::testing::pipeline_schedule_test
