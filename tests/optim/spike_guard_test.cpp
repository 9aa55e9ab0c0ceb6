#include "caravan/optim/spike_guard.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

namespace caravan::testing::spike_guard_test {
namespace {

using ::testing::HasSubstr;

/// Losses of 3 and 5, norms of 1 and 2, by turns: means of 4 and 1.5, deviations of 1 and 0.5.
SpikeGuard after(int64_t steps, double deviations) {
  SpikeGuard guard(deviations);
  for (int64_t i = 0; i < steps; ++i) EXPECT_EQ(guard.why_skipped(i % 2 == 0 ? 3 : 5, i % 2 == 0 ? 1 : 2), "");
  return guard;
}

TEST(SpikeGuard, SkipsWhatIsFarAboveTheMean) {
  SpikeGuard guard = after(100, 4);
  EXPECT_EQ(guard.why_skipped(7.9, 3.4), "");
  guard = after(100, 4);
  EXPECT_EQ(guard.why_skipped(8.1, 1.5), "loss 8.1 is 4.1 standard deviations above the mean 4 of 100 steps");
  EXPECT_THAT(guard.why_skipped(4, 3.6), HasSubstr("gradient norm 3.6 is 4.2 standard deviations"));
  EXPECT_EQ(guard.why_skipped(0, 0), "") << "below the mean";
  EXPECT_EQ(guard.num_skipped(), 2);
}

TEST(SpikeGuard, SkipsNothingBeforeItKnowsTheLevel) {
  SpikeGuard few = after(SpikeGuard::kLeast - 1, 4);
  EXPECT_EQ(few.why_skipped(1e6, 1e6), "");
  SpikeGuard enough = after(SpikeGuard::kLeast, 4);
  EXPECT_NE(enough.why_skipped(1e6, 1e6), "");
}

TEST(SpikeGuard, SkippedStepsAreNotInTheWindow) {
  SpikeGuard guard = after(100, 4);
  for (int i = 0; i < 5; ++i) {
    EXPECT_NE(guard.why_skipped(1e6, 1.5), "");
    EXPECT_EQ(guard.why_skipped(4, 1.5), "");
  }
  EXPECT_EQ(guard.num_skipped(), 5);
}

TEST(SpikeGuard, TheWindowIsTheLastHundredSteps) {
  SpikeGuard guard = after(100, 4);
  for (size_t i = 0; i < SpikeGuard::kWindow; ++i) guard.why_skipped(i % 2 == 0 ? 0.3 : 0.5, 1.5);
  EXPECT_THAT(guard.why_skipped(3, 1.5), HasSubstr("above the mean 0.4 of 100 steps"));
}

/// A run whose level has risen for good goes on.
TEST(SpikeGuard, LearnsANewLevelAfterTenInARow) {
  SpikeGuard guard = after(100, 4);
  for (int i = 0; i < 9; ++i) EXPECT_NE(guard.why_skipped(50, 1.5), "");
  EXPECT_THAT(guard.why_skipped(50, 1.5), HasSubstr("the last of 10 in a row"));
  for (int64_t i = 0; i < SpikeGuard::kLeast; ++i) EXPECT_EQ(guard.why_skipped(i % 2 == 0 ? 49 : 51, 1.5), "");
  EXPECT_EQ(guard.why_skipped(53, 1.5), "");
  EXPECT_NE(guard.why_skipped(500, 1.5), "");
}

TEST(SpikeGuard, RoundingOfAConstantIsNoSpike) {
  SpikeGuard guard(4);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(guard.why_skipped(0.1 * (1 + 1e-9 * (i % 3)), 1), "");
}

TEST(SpikeGuard, ContinuesFromItsState) {
  SpikeGuard whole = after(37, 2), second(2);
  second.set_state(whole.state());
  for (int i = 0; i < 200; ++i) {
    const double loss = 4 + (i * 7 % 13 == 0 ? 2.5 : i % 3), norm = 1 + i * 5 % 11 * 0.2;
    EXPECT_EQ(second.why_skipped(loss, norm), whole.why_skipped(loss, norm)) << i;
  }
  EXPECT_EQ(second.num_skipped(), whole.num_skipped());
  EXPECT_GT(whole.num_skipped(), 0);
}

}  // namespace
}  // namespace caravan::testing::spike_guard_test
