#pragma once

#include <gmock/gmock.h>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/optim/learning_rate.h"
#include "caravan/registry/registry.h"

namespace caravan::testing {

inline std::vector<double> course(const LearningRate& rate) {
  std::vector<double> all;
  for (int64_t step = 0; step < rate.total_steps; ++step) all.push_back(rate.at(step));
  return all;
}

/// Checks a schedule over ten steps, of which two warm up to 2 and four decay, to a fifth.
inline void expect_course(Setting schedule, const std::vector<double>& want) {
  if (schedule.reads("final_lr_fraction")) schedule.set("final_lr_fraction", 0.2);
  if (schedule.reads("decay_fraction")) schedule.set("decay_fraction", 0.4);
  EXPECT_THAT(course({.schedule = schedule, .lr = 2, .warmup_steps = 2, .total_steps = 10}),
              ::testing::Pointwise(::testing::DoubleNear(1e-12), want));
}
inline void expect_course(const std::string& name, const std::vector<double>& want) {
  expect_course(Setting("learning_rate", name), want);
}

}  // namespace caravan::testing
