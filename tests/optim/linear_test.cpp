#include <gtest/gtest.h>

#include "tests/optim/course.h"

namespace caravan::testing::linear_test {
namespace {

TEST(LinearRate, FallsToTheFinalFraction) {
  expect_course("linear", {1.0, 2.0, 1.8, 1.6, 1.4, 1.2, 1.0, 0.8, 0.6, 0.4});
}

}  // namespace
}  // namespace caravan::testing::linear_test
