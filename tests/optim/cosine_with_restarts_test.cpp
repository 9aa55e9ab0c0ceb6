#include <cmath>

#include <gtest/gtest.h>

#include "tests/optim/course.h"

namespace caravan::testing::cosine_with_restarts_test {
namespace {

/// From 2 to 0.4, at the cosine `c` of the angle.
double at(double c) { return 0.4 + 0.8 * (1 + c); }

Setting restarts(int64_t cycles, double growth = 1) {
  return {"learning_rate", "cosine_with_restarts", {{"cycles", cycles}, {"cycle_growth", growth}}};
}

TEST(CosineWithRestartsRate, EachCycleEndsAtTheFinalFraction) {
  const double h = std::sqrt(0.5);
  expect_course(restarts(2), {1.0, 2.0, at(h), at(0), at(-h), 0.4, at(h), at(0), at(-h), 0.4});
}

TEST(CosineWithRestartsRate, CyclesGrow) {
  const double r = std::sqrt(0.75);
  expect_course(restarts(2, 3), {1.0, 2.0, at(0), 0.4, at(r), at(0.5), at(0), at(-0.5), at(-r), 0.4});
}

TEST(CosineWithRestartsRate, EndsOfCyclesAreWholeSteps) {
  expect_course(restarts(3), {1.0, 2.0, at(0.5), at(-0.5), 0.4, at(0), 0.4, at(0.5), at(-0.5), 0.4});
}

TEST(CosineWithRestartsRate, OneCycleIsTheCosine) {
  const LearningRate one{.schedule = restarts(1), .lr = 3, .warmup_steps = 7, .total_steps = 1000};
  const LearningRate cosine{.schedule = {"learning_rate", "cosine"}, .lr = 3, .warmup_steps = 7, .total_steps = 1000};
  EXPECT_THAT(course(one), ::testing::Pointwise(::testing::DoubleNear(1e-12), course(cosine)));
}

/// More cycles than steps: the rate stays at its end, and no length is 0.
TEST(CosineWithRestartsRate, MoreCyclesThanSteps) {
  for (const double rate : course({.schedule = restarts(100, 10), .lr = 1, .total_steps = 20})) {
    EXPECT_GT(rate, 0);
    EXPECT_LE(rate, 1);
  }
}

}  // namespace
}  // namespace caravan::testing::cosine_with_restarts_test
