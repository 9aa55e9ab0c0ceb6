#include <gmock/gmock.h>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "tests/optim/course.h"

namespace caravan::testing::piecewise_test {
namespace {

using ::testing::HasSubstr;
using Points = std::vector<StepPoint>;

Setting through(const Points& points) { return {"learning_rate", "piecewise", {{"points", points}}}; }

std::string refusal_of(const Points& points) {
  try {
    through(points);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(PiecewiseRate, IsLinearBetweenPoints) {
  expect_course(through({{0, 1}, {4, 0.5}, {8, 0.1}}), {1.0, 2.0, 1.25, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2});
}

TEST(PiecewiseRate, BeforeTheFirstPointAsThere) {
  expect_course(through({{6, 0.25}, {7, 1}}), {1.0, 2.0, 0.5, 0.5, 0.5, 0.5, 2.0, 2.0, 2.0, 2.0});
}

TEST(PiecewiseRate, RefusesPointsThatDoNotRise) {
  EXPECT_THAT(refusal_of({{5, 1}, {5, 0.5}}), HasSubstr("step 5 comes after step 5: steps must rise"));
  EXPECT_THAT(refusal_of({{-1, 1}}), HasSubstr("step -1 is too small"));
  EXPECT_THAT(refusal_of({{0, 1}, {3, 1.5}}), HasSubstr("at step 3: 1.5 is too large, must be at most 1"));
}

}  // namespace
}  // namespace caravan::testing::piecewise_test
