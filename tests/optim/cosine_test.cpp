#include <cmath>

#include <gtest/gtest.h>

#include "tests/optim/course.h"

namespace caravan::testing::cosine_test {
namespace {

TEST(CosineRate, FallsToTheFinalFraction) {
  const double h = std::sqrt(0.5);  // cosines of multiples of 45 degrees, shifted by 22.5: a half angle
  const double a = std::sqrt((1 + h) / 2);
  const double b = std::sqrt((1 - h) / 2);
  const auto cosine = [](double c) { return 0.4 + 1.6 * (1 + c) / 2; };
  expect_course("cosine",
                {1.0, 2.0, cosine(a), cosine(h), cosine(b), cosine(0), cosine(-b), cosine(-h), cosine(-a), 0.4});
}

}  // namespace
}  // namespace caravan::testing::cosine_test
