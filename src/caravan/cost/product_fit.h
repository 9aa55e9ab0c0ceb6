#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "caravan/cost/hardware.h"

namespace caravan {

/// A product [m, k] x [k, n] and how long it took.
struct TimedProduct {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  double seconds = 0;

  double flops() const noexcept { return 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

/// What ProductRate's formula says of `count` such products, computed together, on a device with `units`, without the
/// launch of their kernel.
double product_seconds(const ProductRate& rate, int64_t units, int64_t m, int64_t n, int64_t k,
                       double count = 1) noexcept;

struct ProductFit {
  ProductRate rate{};
  double typical_error = 0;  ///< root mean square of the logarithm of formula / time: 0.1 is about 10 %
  double worst_error = 0;    ///< the largest of its absolute values
};

/// The rate whose formula, plus `launch_seconds` for each product, is nearest to the times: least squares of
/// logarithms. Of equally good ones that with the smallest tiles, and the least ramp. Throws UsageError without
/// products.
ProductFit fit_product_rate(const std::string& dtype, int64_t units, double launch_seconds,
                            const std::vector<TimedProduct>& products);

}  // namespace caravan
