#include "caravan/cost/product_fit.h"

#include <algorithm>
#include <cmath>

#include "caravan/base/error.h"

namespace caravan {
namespace {

constexpr int64_t kTiles[] = {1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256};
constexpr int64_t kRamps[] = {0, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512};
constexpr double kBetter = 1 - 1e-9;  // more than rounding

/// FLOPs that the formula counts, padded tiles and idle units included.
double counted_flops(const ProductRate& rate, int64_t units, int64_t m, int64_t n, int64_t k, double count) noexcept {
  const auto tile_m = static_cast<double>(rate.tile_m), tile_n = static_cast<double>(rate.tile_n);
  const double tiles = std::ceil(static_cast<double>(m) / tile_m) * std::ceil(static_cast<double>(n) / tile_n) * count;
  const double waves = std::ceil(tiles / static_cast<double>(units));
  return waves * static_cast<double>(units) * 2 * tile_m * tile_n * static_cast<double>(k + rate.ramp_k);
}

/// Sets rate.flops to what fits best, for its tile and ramp.
ProductFit fit_flops(ProductRate rate, int64_t units, double launch_seconds,
                     const std::vector<TimedProduct>& products) {
  const auto log_time = [&](const TimedProduct& one) {
    return std::log(std::max(one.seconds - launch_seconds, one.seconds / 10));
  };
  const auto log_flops = [&](const TimedProduct& one) {
    return std::log(counted_flops(rate, units, one.m, one.n, one.k, 1));
  };
  double sum = 0;
  for (const TimedProduct& one : products) sum += log_flops(one) - log_time(one);
  const double log_rate = sum / static_cast<double>(products.size());
  ProductFit fit;
  for (const TimedProduct& one : products) {
    const double error = log_flops(one) - log_rate - log_time(one);
    fit.typical_error += error * error;
    fit.worst_error = std::max(fit.worst_error, std::abs(error));
  }
  fit.typical_error = std::sqrt(fit.typical_error / static_cast<double>(products.size()));
  rate.flops = std::exp(log_rate);
  fit.rate = std::move(rate);
  return fit;
}

}  // namespace

double product_seconds(const ProductRate& rate, int64_t units, int64_t m, int64_t n, int64_t k, double count) noexcept {
  return counted_flops(rate, units, m, n, k, count) / rate.flops;
}

ProductFit fit_product_rate(const std::string& dtype, int64_t units, double launch_seconds,
                            const std::vector<TimedProduct>& products) {
  if (products.empty()) {
    throw UsageError({.op = "hardware", .subject = dtype, .fact = "no products were timed", .action = "time some"});
  }
  ProductFit best;
  for (const int64_t tile_m : kTiles) {
    for (const int64_t tile_n : kTiles) {
      for (const int64_t ramp_k : kRamps) {
        const ProductRate rate{.dtype = dtype, .tile_m = tile_m, .tile_n = tile_n, .ramp_k = ramp_k};
        ProductFit fit = fit_flops(rate, units, launch_seconds, products);
        const bool is_better = fit.typical_error < kBetter * best.typical_error;
        if (best.rate.flops == 0 || is_better) best = std::move(fit);
      }
    }
  }
  return best;
}

}  // namespace caravan
