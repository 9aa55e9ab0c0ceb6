#include "caravan/cost/step_fit.h"

#include <vector>

#include <gtest/gtest.h>

namespace caravan::testing {
namespace {

HardwareDevice processor_of_test() {
  HardwareDevice device{.name = "processor", .memory_bytes_per_second = 1e15, .is_processor = true};
  device.products = {{.dtype = "fp32", .flops = 1e11, .tile_m = 1, .tile_n = 1, .ramp_k = 0}};
  return device;
}

/// A product of `flops`, and `kernels` others of `bytes` each.
TimedStep step_of(int64_t kernels, int64_t bytes, int64_t size, double kernel_seconds, double rate) {
  TimedStep step;
  step.kernels.push_back(
      {.kind = KernelWork::Kind::product, .what = "mm", .dtype = "fp32", .m = size, .n = size, .k = size});
  for (int64_t i = 0; i < kernels; ++i) step.kernels.push_back({.what = "add", .dtype = "fp32", .bytes = bytes});
  const double of_product = 2.0 * static_cast<double>(size * size * size) / 1e11;
  step.seconds =
      of_product + static_cast<double>(kernels + 1) * kernel_seconds + static_cast<double>(kernels * bytes) / rate;
  return step;
}

TEST(StepFit, FindsWhatKernelsTake) {
  const std::vector<TimedStep> steps{step_of(100, 1000, 64, 2e-5, 5e9), step_of(50, 1'000'000, 128, 2e-5, 5e9),
                                     step_of(20, 200'000, 256, 2e-5, 5e9)};
  const StepFit fit = fit_kernels(processor_of_test(), "fp32", steps);
  EXPECT_NEAR(fit.kernel_seconds, 2e-5, 1e-7);
  EXPECT_NEAR(fit.kernel_bytes_per_second, 5e9, 1e7);
  EXPECT_LT(fit.worst_error, 1e-3);
}

TEST(StepFit, NothingTakesLessThanNoTime) {
  // Products that are faster than their formula leave less than nothing to explain.
  std::vector<TimedStep> steps{step_of(10, 1000, 256, 0, 1e12), step_of(20, 5000, 512, 0, 1e12)};
  for (TimedStep& step : steps) step.seconds *= 0.5;
  const StepFit fit = fit_kernels(processor_of_test(), "fp32", steps);
  EXPECT_EQ(fit.kernel_seconds, 0);
  EXPECT_EQ(fit.kernel_bytes_per_second, 0);
  EXPECT_GT(fit.worst_error, 0.5);
}

TEST(StepFit, OneUnknownIsEnoughForOneKindOfStep) {
  const std::vector<TimedStep> steps{step_of(100, 1000, 64, 1e-5, 1e15)};
  const StepFit fit = fit_kernels(processor_of_test(), "fp32", steps);
  EXPECT_LT(fit.worst_error, 0.01);
}

}  // namespace
}  // namespace caravan::testing
