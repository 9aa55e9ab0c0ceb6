#include "caravan/memory/chunks/chunk_moves.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "caravan/base/error.h"
#include "tests/memory/chunks/gpt2_chunks.h"
#include "tests/memory/chunks/random_trace.h"

namespace caravan::testing::chunk_moves_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using enum ChunkAccess;
using Kind = ChunkMove::Kind;

// Chunks of 10 bytes, one use a moment.
ChunkTrace trace_of_uses(const std::vector<std::pair<int, ChunkAccess>>& uses, int64_t budget, size_t num_chunks = 4) {
  ChunkTrace trace{.chunk_bytes = std::vector<int64_t>(num_chunks, 10)};
  for (const auto& [chunk, access] : uses) {
    trace.uses.push_back({.moment = trace.num_moments(), .chunk = chunk, .access = access});
    trace.budget_bytes.push_back(budget);
  }
  return trace;
}

std::string moves(const ChunkPlan& plan) {
  std::string text;
  for (const ChunkMove& move : plan.moves)
    text += (text.empty() ? "" : " ") + std::to_string(move.moment) +
            std::string(1, "fcwd"[static_cast<int>(move.kind)]) + std::to_string(move.chunk);
  return text;
}

std::string error_of(const ChunkTrace& trace) {
  try {
    trace.validate();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(ChunkTrace, NamesWhatIsWrong) {
  ChunkTrace trace = trace_of_uses({{0, read}, {1, read}}, 10);
  EXPECT_EQ(error_of(trace), "");
  trace.uses[1].moment = 0;
  EXPECT_THAT(error_of(trace), AllOf(HasSubstr("moment 0"), HasSubstr("uses 20 B"), HasSubstr("10 B")));
  trace.uses[1] = trace.uses[0];
  EXPECT_THAT(error_of(trace), AllOf(HasSubstr("chunk 0 at moment 0"), HasSubstr("used twice")));
  trace.uses[1].moment = 2;
  EXPECT_THAT(error_of(trace), HasSubstr("does not exist"));
  EXPECT_THAT(error_of(trace_of_uses({{0, consume}, {0, read}}, 10)), HasSubstr("have been consumed"));
}

TEST(ChunkMoves, LruAndLatestEvictAsTheirNamesSay) {
  const ChunkTrace trace = trace_of_uses({{0, read}, {1, read}, {2, read}, {0, read}, {1, read}}, 20);
  EXPECT_EQ(moves(plan_moves(trace, ChunkPolicy::lru)), "0f0 1f1 2d0 2f2 3d1 3f0 4d2 4f1");
  EXPECT_EQ(moves(plan_moves(trace, ChunkPolicy::latest)), "0f0 1f1 2d1 2f2 4d0 4f1");
}

TEST(ChunkMoves, RecordedSparesAWriteBack) {
  // Chunk 0 is used later than 1, but has been written and is to be written again: to evict it costs twice.
  const ChunkTrace trace = trace_of_uses({{0, modify}, {1, read}, {2, read}, {1, read}, {0, modify}}, 20);
  EXPECT_EQ(plan_moves(trace, ChunkPolicy::latest).moved_bytes(), 60);
  const ChunkPlan plan = plan_moves(trace, ChunkPolicy::recorded);
  EXPECT_EQ(moves(plan), "0f0 1f1 2d1 2f2 3d2 3f1 5w0");
  EXPECT_EQ(plan.moved_bytes(), 50);
}

TEST(ChunkMoves, ContentsThatNobodyReadsAreNotMoved) {
  const ChunkTrace trace = trace_of_uses({{0, overwrite}, {1, overwrite}, {1, consume}, {0, overwrite}}, 10);
  const ChunkPlan plan = plan_moves(trace, ChunkPolicy::recorded);
  EXPECT_EQ(moves(plan), "0c0 1d0 1c1 3d1 3c0 4w0");
  EXPECT_EQ(plan.fetched_bytes, 0);
  EXPECT_EQ(plan.written_bytes, 10);
}

TEST(ChunkMoves, AHostUseTakesTheContents) {
  ChunkTrace trace = trace_of_uses({{0, modify}, {0, read}, {0, read}, {0, modify}, {0, read}}, 10);
  trace.uses[1].is_on_host = trace.uses[3].is_on_host = true;
  EXPECT_EQ(moves(plan_moves(trace, ChunkPolicy::lru)), "0f0 1w0 3d0 4f0");
}

TEST(ChunkMoves, ABudgetThatShrinksEvicts) {
  ChunkTrace trace = trace_of_uses({{0, read}, {1, read}, {1, read}, {0, read}}, 20);
  trace.budget_bytes[2] = 10;
  EXPECT_EQ(moves(plan_moves(trace, ChunkPolicy::recorded)), "0f0 1f1 2d0 3f0");
}

TEST(ChunkMoves, FixedDecisionsAreTakenOrRefused) {
  const ChunkTrace trace = trace_of_uses({{0, read}, {1, read}, {2, read}, {0, read}, {1, read}}, 20);
  EXPECT_EQ(moves(plan_moves(trace, {true, false, true, true, true})), "0f0 1f1 2d1 2f2 4d2 4f1");
  EXPECT_EQ(moves(plan_moves(trace, {false, true, true, true, true})), "0f0 1d0 1f1 2f2 3d2 3f0");
  try {
    plan_moves(trace, {true, true, true, true, true});
    FAIL() << "both 0 and 1 cannot stay at moment 2";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("moment 2"), HasSubstr("has 20 B"), HasSubstr("room for 10 B")));
  }
}

TEST(ChunkMoves, PrefetchUsesTheRoomThereIsAndMakesMore) {
  ChunkTrace trace = trace_of_uses({{0, read}, {1, read}, {2, read}, {3, read}}, 30);
  const ChunkPlan plan = plan_moves(trace, ChunkPolicy::recorded);
  EXPECT_EQ(moves(plan), "0f0 1f1 2f2 3d0 3f3");
  EXPECT_EQ(moves(with_prefetch(plan, trace, 1)), "0f0 0f1 1f2 2d0 2f3");
  EXPECT_EQ(moves(with_prefetch(plan, trace, 2)), "0f0 0f1 0f2 1d0 1f3");
  trace.budget_bytes[0] = 20;
  EXPECT_EQ(moves(with_prefetch(plan, trace, 2)), "0f0 0f1 1f2 1d0 1f3");
}

TEST(ChunkMoves, PrefetchWaitsForTheHost) {
  ChunkTrace trace = trace_of_uses({{1, read}, {0, modify}, {1, read}, {0, read}}, 30);
  trace.uses[1].is_on_host = true;
  EXPECT_EQ(moves(with_prefetch(plan_moves(trace, ChunkPolicy::recorded), trace, 3)), "0f1 2f0");
}

TEST(ChunkMoves, ReplayFindsBrokenPlans) {
  const ChunkTrace trace = trace_of_uses({{0, modify}, {1, read}, {0, read}}, 10);
  const ChunkPlan plan = plan_moves(trace, ChunkPolicy::recorded);
  EXPECT_EQ(moves(plan), "0f0 1w0 1d0 1f1 2d1 2f0");
  check_moves(plan, trace);
  for (size_t i = 0; i < plan.moves.size(); ++i) {
    ChunkPlan broken = plan;
    broken.moves.erase(broken.moves.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_THROW(check_moves(broken, trace), InternalError) << "without move " << i;
  }
  ChunkPlan lies = plan;
  lies.fetched_bytes += 10;
  EXPECT_THROW(check_moves(lies, trace), InternalError);
}

RC_GTEST_PROP(ChunkMoves, PlansOfEveryPolicyWork, ()) {
  const ChunkTrace trace = random_trace(*rc::gen::inRange(1, 8), *rc::gen::inRange(1, 30));
  trace.validate();
  for (const ChunkPolicy policy : {ChunkPolicy::lru, ChunkPolicy::latest, ChunkPolicy::recorded}) {
    const ChunkPlan plan = plan_moves(trace, policy);
    check_moves(plan, trace);
    const ChunkPlan ahead = with_prefetch(plan, trace, *rc::gen::inRange(1, 6));
    check_moves(ahead, trace);
    RC_ASSERT(ahead.moves.size() == plan.moves.size());
  }
  RC_ASSERT(plan_moves(trace, ChunkPolicy::recorded).moved_bytes() <=
            plan_moves(trace, ChunkPolicy::latest).moved_bytes());
}

TEST(ChunkStep, WritesForwardBackwardAndUpdate) {
  ChunkStep step{.units = {{0}, {0, 1}}, .num_chunks = 2, .chunk_bytes = 10, .state_bytes = 60, .updated_on_device = 1};
  const ChunkTrace trace = trace_of(step, {.device_bytes = 100, .forward_bytes = {30, 40}, .backward_bytes = {50, 60}});
  EXPECT_THAT(trace.chunk_bytes, ElementsAre(10, 10, 60));
  EXPECT_THAT(trace.budget_bytes, ElementsAre(30, 40, 60, 50, 100, 100));
  const std::vector<ChunkUse> uses = {{0, 0, read},   {1, 0, read},   {1, 1, read},
                                      {2, 0, modify}, {2, 1, modify}, {3, 0, modify},
                                      {4, 0, modify}, {4, 2, modify}, {5, 1, modify, true}};
  EXPECT_EQ(trace.uses, uses);
  step.recompute = 2;
  EXPECT_EQ(trace_of(step, {.device_bytes = 100}).uses.size(), uses.size() + 3);
}

TEST(ChunkStep, GradientsReplaceParametersOrHaveChunks) {
  ChunkStep step{.units = {{0}}, .num_chunks = 1, .chunk_bytes = 10, .state_bytes = 60, .num_micro_batches = 2};
  step.reuses_chunks = false;
  const std::vector<ChunkUse> uses = {{0, 0, read}, {1, 0, read},   {1, 1, overwrite},     {2, 0, read},
                                      {3, 0, read}, {3, 1, modify}, {4, 1, consume, true}, {4, 0, overwrite, true}};
  EXPECT_EQ(trace_of(step, {.device_bytes = 100}).uses, uses);
  // The parameter of one chunk comes once a step, and its gradient goes once, and not at all when they stay together.
  EXPECT_EQ(plan_moves(trace_of(step, {.device_bytes = 20}), ChunkPolicy::recorded).moved_bytes(), 20);
}

}  // namespace
}  // namespace caravan::testing::chunk_moves_test
