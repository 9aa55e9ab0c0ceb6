#include "caravan/parallel/pipeline_schedule.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/parallel/pipeline_file.h"

namespace caravan::testing {
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

/// Every dependency is met, messages of two ranks come in their order, one of each kind may be on its way to a rank, and
/// no rank waits for ever: check(), for every schedule.
TEST(Schedules, KeepTheRules) {
  for (const std::string& schedule : pipeline_schedules()) {
    for (int ranks = 1; ranks <= 16; ++ranks) {
      for (int micro_batches = 1; micro_batches <= 32; ++micro_batches) {
        for (int chunks = 1; chunks <= 4; ++chunks) {
          const PipelineChoice choice{.degree = ranks, .schedule = schedule, .stages_per_rank = chunks};
          if (choice.is_asynchronous() || !choice.wrong_with({.layers = 1000}, micro_batches).empty()) continue;
          const PipelineOrder order = pipeline_order(choice, micro_batches);
          SCOPED_TRACE(schedule + " " + std::to_string(ranks) + " " + std::to_string(micro_batches) + " " +
                       std::to_string(chunks));
          ASSERT_NO_THROW(check(order));
          const bool recomputes = micro_batches % 5 == 1;
          ASSERT_NO_THROW(check(recomputes ? with_recompute(order) : order));
        }
      }
    }
  }
}

/// The file of a schedule is the schedule.
TEST(PipelineTable, IsReadAsItIsWritten) {
  for (const PipelineOrder& order :
       {one_f_one_b(3, 4), interleaved(2, 4, 2), zero_bubble_v(2, 3), with_recompute(gpipe(2, 2))}) {
    const PipelineOrder read = parse_pipeline_table("# a comment\n\n" + to_text(order), "table.txt");
    EXPECT_EQ(read.ranks, order.ranks);
    EXPECT_EQ(read.rank_of_stage, order.rank_of_stage);
  }
}

TEST(PipelineTable, IsRefusedWithItsLine) {
  const auto error = [](const std::string& text) { return error_of([&] { parse_pipeline_table(text, "t.txt"); }); };
  EXPECT_THAT(error("rank 0: F0.0 B0.0\nrank 2: F1.0 B1.0\n"), HasSubstr("t.txt:2"));
  EXPECT_THAT(error("rank 0: F0.0 X0.0\n"), HasSubstr("'X0.0' is no pass"));
  EXPECT_THAT(error("rank 0: F0.0 B0\n"), HasSubstr("'B0' is no pass"));
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
  EXPECT_THAT(error, HasSubstr("waits for ever for rank 1, which waits at entry 2 (<1.1@0) for rank 0"));
}

TEST(Interleaved, NeedsAMultipleOfTheRanks) {
  EXPECT_THAT(error_of([] { interleaved(4, 6, 2); }), HasSubstr("use 8"));
}

TEST(Schedules, ThatDoNotExistNameTheNearest) {
  EXPECT_THAT(error_of([] { pipeline_order({.degree = 2, .schedule = "1f1"}, 4); }), HasSubstr("use '1f1b'"));
}

/// PipeDream: an update follows each backward; 2BW: the last backward of each batch.
TEST(Asynchronous, UpdateWithoutAFlush) {
  const PipelineOrder order = pipedream(2, 2);
  EXPECT_EQ(to_text(order), "rank 0: F0.0 F0.1 B0.0 U0.0 B0.1 U0.1\nrank 1: F1.0 B1.0 U1.0 F1.1 B1.1 U1.1\n");
  EXPECT_EQ(to_text(pipedream_2bw(1, 2, 2)), "rank 0: F0.0 B0.0 F0.1 B0.1 U0.1 F0.2 B0.2 F0.3 B0.3 U0.3\n");
  EXPECT_THAT(error_of([] { pipedream_2bw(4, 3, 2); }), HasSubstr("batches of 3 micro-batches for 4 ranks"));
}

}  // namespace
}  // namespace caravan::testing
