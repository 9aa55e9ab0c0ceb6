#include "caravan/cost/step_fit.h"

#include <array>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/cost/nonnegative_fit.h"

namespace caravan::testing {
namespace {

HardwareDevice processor_of_test() {
  HardwareDevice device{.name = "processor", .memory_bytes_per_second = 1e10, .is_processor = true};
  device.products = {{.dtype = "fp32", .flops = 1e11, .tile_m = 1, .tile_n = 1, .ramp_k = 0}};
  return device;
}

constexpr double kNoLimit = 1e15;

/// A product of `size`, and `kernels` others of `bytes` each.
TimedStep step_of(int64_t kernels, int64_t bytes, int64_t size, double kernel_seconds, double rate,
                  double operand_rate = kNoLimit) {
  TimedStep step;
  step.kernels.push_back(
      {.kind = KernelWork::Kind::product, .what = "mm", .dtype = "fp32", .m = size, .n = size, .k = size});
  for (int64_t i = 0; i < kernels; ++i) step.kernels.push_back({.what = "add", .dtype = "fp32", .bytes = bytes});
  const double of_product = 2.0 * static_cast<double>(size * size * size) / 1e11;
  step.seconds = of_product + static_cast<double>(kernels + 1) * kernel_seconds +
                 static_cast<double>(kernels * bytes) / rate + static_cast<double>(12 * size * size) / operand_rate;
  return step;
}

TEST(StepFit, FindsWhatKernelsTake) {
  const std::vector<TimedStep> steps{step_of(100, 1000, 64, 2e-5, 5e9), step_of(50, 1'000'000, 128, 2e-5, 5e9),
                                     step_of(20, 200'000, 256, 2e-5, 5e9)};
  const StepFit fit = fit_kernels(processor_of_test(), "fp32", steps);
  EXPECT_NEAR(fit.kernel_seconds, 2e-5, 1e-7);
  EXPECT_NEAR(fit.kernel_bytes_per_second, 5e9, 1e8);  // what is expected of the memory counts a little
  EXPECT_LT(fit.worst_error, 0.02);
}

TEST(StepFit, FindsWhatOperandsTake) {
  std::vector<TimedStep> steps;
  for (const int64_t size : {64, 256, 1024}) {
    for (const int64_t bytes : {1000, 1'000'000}) steps.push_back(step_of(40, bytes, size, 1e-5, 2e10, 4e9));
  }
  const StepFit fit = fit_kernels(processor_of_test(), "fp32", steps);
  EXPECT_NEAR(fit.kernel_seconds, 1e-5, 1e-7);
  EXPECT_NEAR(fit.kernel_bytes_per_second, 2e10, 2e8);
  EXPECT_NEAR(fit.operand_bytes_per_second, 4e9, 2e8);
  EXPECT_LT(fit.worst_error, 0.02);
}

TEST(StepFit, WhatStepsDoNotTellIsAsOfTheMemory) {
  // Operands and other bytes grow together: any sum of both explains them.
  std::vector<TimedStep> steps;
  for (const int64_t size : {100, 200, 400}) steps.push_back(step_of(12, size * size, size, 1e-5, 1e10, 1e10));
  const StepFit fit = fit_kernels(processor_of_test(), "fp32", steps);
  EXPECT_NEAR(fit.kernel_bytes_per_second, 1e10, 1e9);
  EXPECT_NEAR(fit.operand_bytes_per_second, 1e10, 1e9);
}

TEST(NonnegativeFit, NoOtherNumbersAreBetter) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  int num_at_zero = 0;
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<std::array<double, 3>> rows(6);
    std::vector<double> targets;
    for (auto& row : rows) {
      for (double& number : row) number = normal(random);
      targets.push_back(normal(random));
    }
    const auto found = fit_nonnegative(rows, targets);
    // A least square of a convex set: no direction into it is downhill.
    for (size_t i = 0; i < 3; ++i) {
      double slope = 0;
      for (size_t at = 0; at < rows.size(); ++at) {
        slope += rows[at][i] * (std::inner_product(found.begin(), found.end(), rows[at].begin(), 0.0) - targets[at]);
      }
      EXPECT_GE(found[i], 0);
      EXPECT_GE(slope, -1e-6);
      if (found[i] > 0) {
        EXPECT_NEAR(slope, 0, 1e-6);
      }
      num_at_zero += found[i] == 0 ? 1 : 0;
    }
  }
  EXPECT_GT(num_at_zero, 100);
}

TEST(StepFit, NothingTakesLessThanNoTime) {
  // Products that are faster than their formula leave less than nothing to explain.
  std::vector<TimedStep> steps{step_of(10, 1000, 256, 0, 1e12), step_of(20, 5000, 512, 0, 1e12)};
  for (TimedStep& step : steps) step.seconds *= 0.5;
  const StepFit fit = fit_kernels(processor_of_test(), "fp32", steps);
  EXPECT_EQ(fit.kernel_seconds, 0);
  EXPECT_GE(fit.kernel_bytes_per_second, 1e10) << "as fast as memory, or faster";
  EXPECT_GT(fit.worst_error, 0.5);
}

TEST(StepFit, OneUnknownIsEnoughForOneKindOfStep) {
  const std::vector<TimedStep> steps{step_of(100, 1000, 64, 1e-5, 1e15)};
  const StepFit fit = fit_kernels(processor_of_test(), "fp32", steps);
  EXPECT_LT(fit.worst_error, 0.01);
}

}  // namespace
}  // namespace caravan::testing
