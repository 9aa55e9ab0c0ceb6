#include <bit>
#include <cmath>
#include <vector>

#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include "caravan/nn/product/kernels.h"
#include "tests/nn/compare.h"

namespace caravan::testing::half_test {
namespace {

std::vector<kernels::Fp16> every_half() {
  std::vector<kernels::Fp16> all;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) all.push_back({static_cast<uint16_t>(bits)});
  return all;
}

float value_of(kernels::Fp16 x) { return c10::Half(x.bits, c10::Half::from_bits()); }

TEST(Fp16Kernels, readEveryNumberAsTorchDoes) {
  const std::vector<kernels::Fp16> all = every_half();
  std::vector<float> sums(all.size(), 0);
  kernels::accumulate(all.data(), sums.data(), static_cast<int64_t>(all.size()));
  for (size_t i = 0; i < all.size(); ++i) {
    const float want = value_of(all[i]);
    EXPECT_TRUE(sums[i] == want || (std::isnan(sums[i]) && std::isnan(want))) << i;
  }
}

/// Products fall between numbers, on ties, below the smallest and above the largest number.
TEST(Fp16Kernels, roundEveryProductAsTorchDoes) {
  const std::vector<kernels::Fp16> all = every_half();
  std::vector<kernels::Fp16> rounded(all.size());
  for (const float factor : {1.0F, 1.5F, 0.75F, 0.1F, 3e-3F, 1e-5F, 1.0F + 0x1p-11F, 37.0F, -2.0F}) {
    const std::vector<float> mask(all.size(), factor);
    kernels::multiply(all.data(), mask.data(), rounded.data(), static_cast<int64_t>(all.size()));
    for (size_t i = 0; i < all.size(); ++i) {
      const c10::Half want(value_of(all[i]) * factor);
      const bool is_nan = std::isnan(static_cast<float>(want));
      EXPECT_TRUE(rounded[i].bits == want.x || (is_nan && std::isnan(value_of(rounded[i])))) << i << " x " << factor;
    }
  }
}

}  // namespace
}  // namespace caravan::testing::half_test
