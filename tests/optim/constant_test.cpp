#include <gtest/gtest.h>

#include "tests/optim/course.h"

namespace caravan::testing::constant_test {
namespace {

TEST(ConstantRate, StaysAfterTheWarmup) {
  expect_course("constant", {1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0});
}

}  // namespace
}  // namespace caravan::testing::constant_test
