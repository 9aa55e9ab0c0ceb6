#include <gtest/gtest.h>

#include "tests/optim/course.h"

namespace caravan::testing::polynomial_test {
namespace {

TEST(PolynomialRate, FallsAsAPowerOfTheStepsThatAreLeft) {
  expect_course(Setting("learning_rate", "polynomial", {{"power", 2.0}}),
                {1.0, 2.0, 1.625, 1.3, 1.025, 0.8, 0.625, 0.5, 0.425, 0.4});
}

TEST(PolynomialRate, OfTheFirstPowerIsLinear) {
  expect_course("polynomial", {1.0, 2.0, 1.8, 1.6, 1.4, 1.2, 1.0, 0.8, 0.6, 0.4});
}

}  // namespace
}  // namespace caravan::testing::polynomial_test
