#include "caravan/optim/exact_sum.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace caravan::testing::exact_sum_test {
namespace {

double sum_of(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum.value();
}

TEST(ExactSum, OfOneNumberIsThatNumber) {
  for (const double value : {0.0, 5e-324, 2.2250738585072014e-308, 1e-300, 0.1, 1.0, 3.5, 4294967296.0, 1e300,
                             std::numeric_limits<double>::max()}) {
    EXPECT_EQ(sum_of({value}), value);
  }
}

TEST(ExactSum, LosesNothing) {
  EXPECT_EQ(sum_of({1e16, 1, 1, 1, 1}), 1e16 + 4);  // in fp64 each 1 would be lost
  EXPECT_EQ(sum_of(std::vector<double>(1000, 0.5)), 500);
  EXPECT_EQ(sum_of({std::ldexp(1, 1000), std::ldexp(1, -1000)}), std::ldexp(1, 1000));
  EXPECT_EQ(sum_of(std::vector<double>(4, std::ldexp(0xffffffff, 40))), std::ldexp(0xffffffff, 42));
}

/// The sum is the same in any order, and for any cut into parts whose words are added.
TEST(ExactSum, DoesNotDependOnOrderOrParts) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> exponent(-60, 60);
  std::vector<double> values(5000);
  for (double& value : values) value = std::exp2(exponent(random));
  const double want = sum_of(values);
  const double near = std::accumulate(values.begin(), values.end(), 0.0);
  EXPECT_NEAR(want / near, 1, 1e-12);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(values.begin(), values.end(), random);
    std::vector<ExactSum> parts(1 + static_cast<size_t>(round) % 7);
    for (size_t i = 0; i < values.size(); ++i) parts[i % parts.size()].add(values[i]);
    ExactSum all;
    for (ExactSum& part : parts) {
      for (size_t i = 0; i < part.words().size(); ++i) all.words()[i] += part.words()[i];
    }
    EXPECT_EQ(all.value(), want);
  }
}

TEST(ExactSum, KeepsInfinityAndNan) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(sum_of({1, infinity, 2}), infinity);
  EXPECT_TRUE(std::isnan(sum_of({1, infinity, std::nan("")})));
}

}  // namespace
}  // namespace caravan::testing::exact_sum_test
