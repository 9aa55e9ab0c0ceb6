#include "caravan/optim/learning_rate.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/registry/registry.h"

namespace caravan::learning_rate_test {
namespace {

using ::testing::HasSubstr;

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
  const std::string name = first_of("learning_rate").name;
  try {
    const Setting schedule("learning_rate", name.substr(0, name.size() - 1));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the nearest is '" + name + "'"));
  }
}

}  // namespace
}  // namespace caravan::learning_rate_test
