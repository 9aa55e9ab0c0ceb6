#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tests/optim/course.h"

namespace caravan::testing::linear_test {
namespace {

using ::testing::DoubleNear;
using ::testing::Pointwise;

TEST(LinearRate, FallsToTheFinalFraction) {
  EXPECT_THAT(course_over_ten_steps("linear"),
              Pointwise(DoubleNear(1e-12), {1.0, 2.0, 1.8, 1.6, 1.4, 1.2, 1.0, 0.8, 0.6, 0.4}));
}

}  // namespace
}  // namespace caravan::testing::linear_test
