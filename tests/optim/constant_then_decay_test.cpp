#include <gtest/gtest.h>

#include "tests/optim/course.h"

namespace caravan::testing::constant_then_decay_test {
namespace {

TEST(ConstantThenDecayRate, FallsToTheFinalFractionAtTheEnd) {
  expect_course("constant_then_decay", {1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.6, 1.2, 0.8, 0.4});
}

}  // namespace
}  // namespace caravan::testing::constant_then_decay_test
