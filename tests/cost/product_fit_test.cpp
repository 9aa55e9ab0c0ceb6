// The formula of products on a device, and its fit to times.
#include "caravan/cost/product_fit.h"

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/base/error.h"

namespace caravan::testing::product_fit_test {
namespace {

/// Deals tiles to units one after another; the slowest unit decides.
double simulated_seconds(const ProductRate& rate, int64_t units, int64_t m, int64_t n, int64_t k) {
  std::vector<double> busy(static_cast<size_t>(units), 0);
  const double tile = 2.0 * static_cast<double>(rate.tile_m * rate.tile_n * (k + rate.ramp_k)) /
                      (rate.flops / static_cast<double>(units));
  size_t next = 0;
  for (int64_t row = 0; row < m; row += rate.tile_m) {
    for (int64_t column = 0; column < n; column += rate.tile_n) busy[next++ % busy.size()] += tile;
  }
  return busy.front();
}

std::vector<TimedProduct> timed(const ProductRate& rate, int64_t units, double launch, double noise) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int64_t> size(1, 900);
  std::normal_distribution<double> error(0, noise);
  std::vector<TimedProduct> products;
  for (int i = 0; i < 60; ++i) {
    TimedProduct one{.m = size(random), .n = size(random), .k = size(random)};
    one.seconds =
        launch + simulated_seconds(rate, units, one.m, one.n, one.k) * std::exp(noise > 0 ? error(random) : 0);
    products.push_back(one);
  }
  return products;
}

TEST(ProductFit, TheFormulaCountsWavesOfTiles) {
  const ProductRate rate{"bf16", 0, 3e12, 128, 256, 64};
  for (const int64_t units : {1, 3, 108}) {
    for (const auto& [m, n, k] : {std::tuple(1, 1, 1), std::tuple(128, 256, 512), std::tuple(129, 257, 100),
                                  std::tuple(4096, 1024, 768), std::tuple(1000, 5000, 70)}) {
      const double expected = simulated_seconds(rate, units, m, n, k);
      EXPECT_NEAR(product_seconds(rate, units, m, n, k) / expected, 1, 1e-9) << units << ": " << m << ' ' << n;
    }
  }
}

TEST(ProductFit, FindsTheRateThatMadeTheTimes) {
  for (const int64_t units : {1, 4}) {
    const ProductRate rate{"fp32", 0, 8.5e10, 16, 48, 32};
    const ProductFit fit = fit_product_rate("fp32", units, 3e-6, timed(rate, units, 3e-6, 0));
    EXPECT_EQ(fit.rate.dtype, "fp32");
    EXPECT_EQ(fit.rate.tile_m, 16);
    EXPECT_EQ(fit.rate.tile_n, 48);
    EXPECT_EQ(fit.rate.ramp_k, 32);
    EXPECT_NEAR(fit.rate.flops / 8.5e10, 1, 1e-6);
    EXPECT_LT(fit.worst_error, 1e-6);
  }
}

TEST(ProductFit, SaysHowFarTimesAreFromIt) {
  const ProductRate rate{"fp32", 0, 8.5e10, 16, 48, 32};
  const std::vector<TimedProduct> products = timed(rate, 2, 0, 0.1);
  const ProductFit fit = fit_product_rate("fp32", 2, 0, products);
  double sum = 0, worst = 0;
  for (const TimedProduct& one : products) {
    const double error = std::log(product_seconds(fit.rate, 2, one.m, one.n, one.k) / one.seconds);
    sum += error * error;
    worst = std::max(worst, std::abs(error));
  }
  EXPECT_NEAR(fit.typical_error, std::sqrt(sum / static_cast<double>(products.size())), 1e-9);
  EXPECT_NEAR(fit.worst_error, worst, 1e-9);
  EXPECT_GT(fit.typical_error, 0.05) << "the noise is 0.1";
  EXPECT_LT(fit.typical_error, 0.15);
}

TEST(ProductFit, TilesThatTimesDoNotShowAreSmall) {
  std::vector<TimedProduct> products;
  for (const int64_t size : {64, 128, 256}) products.push_back({size, size, size, 2.0 * size * size * size / 1e11});
  const ProductFit fit = fit_product_rate("fp32", 1, 0, products);
  EXPECT_EQ(fit.rate.tile_m * fit.rate.tile_n, 1);
  EXPECT_EQ(fit.rate.ramp_k, 0);
  EXPECT_NEAR(fit.rate.flops / 1e11, 1, 1e-9);
  EXPECT_THROW(fit_product_rate("fp32", 1, 0, {}), UsageError);
}

}  // namespace
}  // namespace caravan::testing::product_fit_test
