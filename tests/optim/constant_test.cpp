#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tests/optim/course.h"

namespace caravan::testing::constant_test {
namespace {

using ::testing::DoubleNear;
using ::testing::Pointwise;

TEST(ConstantRate, StaysAfterTheWarmup) {
  EXPECT_THAT(course_over_ten_steps("constant"),
              Pointwise(DoubleNear(1e-12), {1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0}));
}

}  // namespace
}  // namespace caravan::testing::constant_test
