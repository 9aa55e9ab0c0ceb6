#include "caravan/optim/learning_rate.h"

#include <cmath>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/registry/registry.h"

namespace caravan::learning_rate_test {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

std::vector<double> course(const LearningRate& rate) {
  std::vector<double> all;
  for (int64_t step = 0; step < rate.total_steps; ++step) all.push_back(rate.at(step));
  return all;
}

LearningRate over_ten_steps(const std::string& name) {
  Setting schedule("learning_rate", name);
  schedule.set("final_lr_fraction", 0.2);
  schedule.set("decay_fraction", 0.4);
  return {.schedule = schedule, .lr = 2, .warmup_steps = 2, .total_steps = 10};
}

TEST(LearningRate, WarmsUpFromItsFirstStepAndEndsAtTheFinalFraction) {
  EXPECT_THAT(course(over_ten_steps("constant")),
              Pointwise(DoubleNear(1e-12), {1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0}));
  EXPECT_THAT(course(over_ten_steps("linear")),
              Pointwise(DoubleNear(1e-12), {1.0, 2.0, 1.8, 1.6, 1.4, 1.2, 1.0, 0.8, 0.6, 0.4}));
  EXPECT_THAT(course(over_ten_steps("constant_then_decay")),
              Pointwise(DoubleNear(1e-12), {1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.6, 1.2, 0.8, 0.4}));
  const double h = std::sqrt(0.5);  // cosines of multiples of 45 degrees, shifted by 22.5: a half angle
  const double a = std::sqrt((1 + h) / 2);
  const double b = std::sqrt((1 - h) / 2);
  const auto cosine = [](double c) { return 0.4 + 1.6 * (1 + c) / 2; };
  EXPECT_THAT(course(over_ten_steps("cosine")),
              Pointwise(DoubleNear(1e-12), {1.0, 2.0, cosine(a), cosine(h), cosine(b), cosine(0), cosine(-b),
                                            cosine(-h), cosine(-a), 0.4}));
}

TEST(LearningRate, DegenerateRunsStayInRange) {
  for (const std::string& name : names_of("learning_rate")) {
    for (const int64_t total : {0, 1, 2, 7}) {
      for (const int64_t warmup : {0, 1, 5, 20}) {
        const LearningRate rate{
            .schedule = {"learning_rate", name}, .lr = 3, .warmup_steps = warmup, .total_steps = total};
        for (int64_t step = 0; step < total + 3; ++step) {  // a run may continue past its end
          EXPECT_GT(rate.at(step), 0);
          EXPECT_LE(rate.at(step), 3 + 1e-12);
        }
      }
    }
  }
}

TEST(LearningRate, AnUnknownScheduleNamesTheNearest) {
  try {
    const Setting schedule("learning_rate", "cosin");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the nearest is 'cosine'"));
  }
}

}  // namespace
}  // namespace caravan::learning_rate_test
