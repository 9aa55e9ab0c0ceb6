#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tests/optim/course.h"

namespace caravan::testing::constant_then_decay_test {
namespace {

using ::testing::DoubleNear;
using ::testing::Pointwise;

TEST(ConstantThenDecayRate, FallsToTheFinalFractionAtTheEnd) {
  EXPECT_THAT(course_over_ten_steps("constant_then_decay"),
              Pointwise(DoubleNear(1e-12), {1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.6, 1.2, 0.8, 0.4}));
}

}  // namespace
}  // namespace caravan::testing::constant_then_decay_test
