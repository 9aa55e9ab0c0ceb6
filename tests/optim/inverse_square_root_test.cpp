#include <cmath>

#include <gtest/gtest.h>

#include "tests/optim/course.h"

namespace caravan::testing::inverse_square_root_test {
namespace {

/// get_inverse_sqrt_schedule of transformers, which counts steps from 1 here: there the first one has the rate 0.
double of_transformers(int64_t step, int64_t warmup, int64_t timescale) {
  if (timescale == 0) timescale = warmup != 0 ? warmup : 10000;
  if (step < warmup) return static_cast<double>(step) / static_cast<double>(warmup);
  const int64_t shift = timescale - warmup;
  return 1 / std::sqrt(static_cast<double>(step + shift) / static_cast<double>(timescale));
}

TEST(InverseSquareRootRate, IsTheRateOfTransformers) {
  for (const int64_t warmup : {0, 1, 50, 4000}) {
    for (const int64_t timescale : {0, 100, 20000}) {
      const LearningRate rate{.schedule = {"learning_rate", "inverse_square_root", {{"timescale", timescale}}},
                              .lr = 3,
                              .warmup_steps = warmup,
                              .total_steps = 1000};
      for (const int64_t step : {0, 1, 7, 48, 49, 50, 51, 3999, 4000, 4001, 100000}) {
        EXPECT_NEAR(rate.at(step), 3 * of_transformers(step + 1, warmup, timescale), 1e-12) << warmup << " " << step;
      }
    }
  }
}

TEST(InverseSquareRootRate, IsHalvedAtFourTimesTheWarmup) {
  const LearningRate rate{.schedule = {"learning_rate", "inverse_square_root"}, .lr = 2, .warmup_steps = 100};
  EXPECT_DOUBLE_EQ(rate.at(99), 2);
  EXPECT_DOUBLE_EQ(rate.at(399), 1);
  EXPECT_DOUBLE_EQ(rate.at(1599), 0.5);
}

}  // namespace
}  // namespace caravan::testing::inverse_square_root_test
