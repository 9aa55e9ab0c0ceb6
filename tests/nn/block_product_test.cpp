#include "caravan/nn/product/block_product.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/base/numeric/simd.h"

namespace caravan::block_product_test {
namespace {

using kernels::Fetch;
using kernels::multiply_block;
using kernels::Pair;

constexpr float kUntouched = 12345;

std::vector<float> normal(int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = distribution(generator);
  return values;
}

struct Shape {
  int64_t m, n, k;
};

/// A c with a margin on all sides, which nothing may write.
struct Result {
  explicit Result(const Shape& shape)
      : stride(shape.n + 5), all(static_cast<size_t>((shape.m + 2) * stride), kUntouched) {}
  float* data() { return all.data() + stride + 2; }
  float& at(int64_t i, int64_t j) { return data()[i * stride + j]; }
  /// And sets the rest to it.
  int64_t count_touched(const Shape& shape) {
    for (int64_t i = 0; i < shape.m; ++i) {
      for (int64_t j = 0; j < shape.n; ++j) at(i, j) = kUntouched;
    }
    return std::ranges::count_if(all, [](float x) { return x != kUntouched; });
  }
  int64_t stride;
  std::vector<float> all;
};

/// Numbers of rows and columns below, at and above those of every kernel.
std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (int64_t m = 1; m <= 30; ++m) all.push_back({m, 64, 9});
  for (int64_t n = 1; n <= 150; ++n) all.push_back({7, n, 5});
  for (const int64_t k : {0, 1, 15, 16, 17, 33, 200}) all.push_back({13, 70, k});
  all.push_back({64, 64, 128});
  return all;
}

float start_of(const Result& c, const std::vector<float>& bias, bool adds, bool has_bias, const Result& before,
               int64_t i, int64_t j) {
  if (adds) return before.all[static_cast<size_t>((i + 1) * c.stride + 2 + j)];
  return has_bias ? bias[static_cast<size_t>(j)] : 0;
}

/// Not close to it: the same bits, which is what makes instruction sets and divisions agree.
TEST(BlockProduct, addsInOrderByFusedMultiplyAdds) {
  if (simd::detected_isa() < simd::Isa::avx2) return;  // products are rounded there
  for (const auto& [m, n, k] : shapes()) {
    const std::vector<float> bias = normal(n, 1), rows = normal(m * (k + 3), 2), columns = normal(k * (m + 3), 3),
                             b = normal(k * (n + 1) + n, 4), start = normal((m + 2) * (n + 5), 5);
    for (const bool is_transposed : {false, true}) {
      const kernels::LeftBlock<float> a = is_transposed ? kernels::LeftBlock<float>{columns.data(), 1, m + 3}
                                                        : kernels::LeftBlock<float>{rows.data(), k + 3};
      for (int way = 0; way < 3; ++way) {
        const bool adds = way == 1, has_bias = way == 2;
        Result c({m, n, k});
        if (adds) c.all = start;
        const Result before = c;
        Fetch fetch;
        fetch.add(b.data(), n + 1, k, n);
        fetch.add(c.data(), c.stride, m, n, /*is_written=*/true);
        fetch.spread_over(m, n, k);
        multiply_block(m, n, k, a, {b.data(), n + 1}, c.data(), c.stride, adds, has_bias ? bias.data() : nullptr,
                       way == 0 ? nullptr : &fetch);
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            float sum = start_of(c, bias, adds, has_bias, before, i, j);
            for (int64_t t = 0; t < k; ++t)
              sum = std::fma(a.data[i * a.row + t * a.step], b[static_cast<size_t>(t * (n + 1) + j)], sum);
            ASSERT_EQ(std::bit_cast<uint32_t>(c.at(i, j)), std::bit_cast<uint32_t>(sum))
                << m << " x " << n << " x " << k << " at " << i << ", " << j << (is_transposed ? " of columns" : "");
          }
        }
        if (!adds) {
          EXPECT_EQ(c.count_touched({m, n, k}), 0) << m << " x " << n << " x " << k;
        }
      }
    }
  }
}

TEST(BlockProduct, keepsInfinitiesAndNaN) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> a{1, kInfinity, 1, NAN}, b{2, 0, 3, 1};
  std::vector<float> c(4);
  multiply_block(2, 2, 2, {a.data(), 2}, {b.data(), 2}, c.data(), 2, false);
  EXPECT_EQ(c[0], kInfinity);
  EXPECT_EQ(c[1], kInfinity);
  EXPECT_TRUE(std::isnan(c[2]) && std::isnan(c[3]));
}

uint32_t bf16_of(float x) { return std::bit_cast<uint32_t>(x) >> 16; }
float float_of(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

TEST(BlockProduct, ofPairsIsThatOfFp64) {
  if (!kernels::has_pair_blocks()) return;
  for (const auto& [m, n, k] : shapes()) {
    const auto pairs = [](int64_t count, unsigned seed) {
      std::vector<Pair> values;
      const std::vector<float> numbers = normal(2 * count, seed);
      for (size_t i = 0; i < numbers.size(); i += 2) {
        values.push_back({bf16_of(numbers[i]) | bf16_of(numbers[i + 1]) << 16});
      }
      return values;
    };
    const std::vector<Pair> rows = pairs(m * (k + 3), 2), columns = pairs(k * (m + 3), 3),
                            b = pairs(k * (n + 1) + n, 4);
    for (const bool is_transposed : {false, true}) {
      const kernels::LeftBlock<Pair> a = is_transposed ? kernels::LeftBlock<Pair>{columns.data(), 1, m + 3}
                                                       : kernels::LeftBlock<Pair>{rows.data(), k + 3};
      Result c({m, n, k});
      multiply_block(m, n, k, a, {b.data(), n + 1}, c.data(), c.stride, false);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0, sizes = 0;
          for (int64_t t = 0; t < k; ++t) {
            const uint32_t x = a.data[i * a.row + t * a.step].bits, y = b[static_cast<size_t>(t * (n + 1) + j)].bits;
            for (const int shift : {0, 16}) {
              const double product = double{float_of(x >> shift & 0xffff)} * float_of(y >> shift & 0xffff);
              sum += product;
              sizes += std::abs(product);
            }
          }
          // Each of 2 k additions rounds to 24 bits.
          ASSERT_NEAR(c.at(i, j), sum, static_cast<double>(2 * k) * 0x1p-24 * sizes) << m << " x " << n << " x " << k;
        }
      }
      EXPECT_EQ(c.count_touched({m, n, k}), 0) << m << " x " << n << " x " << k;
    }
  }
}

}  // namespace
}  // namespace caravan::block_product_test
