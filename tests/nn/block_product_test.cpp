#include "caravan/nn/product/block_product.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <ostream>
#include <random>
#include <utility>
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
std::ostream& operator<<(std::ostream& out, const Shape& s) { return out << s.m << " x " << s.n << " x " << s.k; }

/// A c with a margin on all sides, which nothing may write.
struct Result {
  explicit Result(const Shape& of)
      : shape(of), stride(of.n + 5), all(static_cast<size_t>((of.m + 2) * stride), kUntouched) {}
  float* data() { return all.data() + stride + 2; }
  float& at(int64_t i, int64_t j) { return data()[i * stride + j]; }
  template <class F>
  void for_each(const F& f) {
    for (int64_t i = 0; i < shape.m; ++i) {
      for (int64_t j = 0; j < shape.n; ++j) f(i, j);
    }
  }
  /// How much of the margin is. Sets the rest to what the margin was.
  int64_t count_touched() {
    for_each([&](int64_t i, int64_t j) { at(i, j) = kUntouched; });
    return std::ranges::count_if(all, [](float x) { return x != kUntouched; });
  }
  Shape shape;
  int64_t stride;
  std::vector<float> all;
};

/// Numbers of rows and columns below, at and above those of every kernel.
std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (int64_t m = 1; m <= 30; ++m) all.push_back({m, 64, 9});
  for (int64_t n = 1; n <= 150; ++n) all.push_back({7, n, 5});
  for (const int64_t k : {0, 1, 15, 16, 17, 33, 512, 513, 1100}) all.push_back({13, 70, k});
  all.push_back({64, 64, 128});
  return all;
}

/// A left operand in rows, or in columns.
template <class E>
kernels::LeftBlock<E> left(const std::vector<E>& values, const Shape& shape, bool is_transposed) {
  if (is_transposed) return {values.data(), 1, shape.m + 3};
  return {values.data(), shape.k + 3};
}
int64_t left_count(const Shape& shape) { return (shape.m + 3) * (shape.k + 3); }

template <class E>
Fetch fetch_of(const std::vector<E>& b, Result& c) {
  const auto& [m, n, k] = c.shape;
  Fetch fetch;
  fetch.add(b.data(), n + 1, k, n);
  fetch.add(c.data(), c.stride, m, n, /*is_written=*/true);
  fetch.spread_over(m, n, k);
  return fetch;
}

enum class Start { zero, bias, itself };

void expect_in_order(const Shape& shape, bool is_transposed, Start start) {
  const auto& [m, n, k] = shape;
  const std::vector<float> bias = normal(n, 1), values = normal(left_count(shape), 2), b = normal(k * (n + 1) + n, 4),
                           before = normal(m * n, 5);
  const auto a = left(values, shape, is_transposed);
  Result c(shape);
  const auto start_of = [&](int64_t i, int64_t j) {
    return start == Start::itself ? before[static_cast<size_t>(i * n + j)]
           : start == Start::bias ? bias[static_cast<size_t>(j)]
                                  : 0;
  };
  if (start == Start::itself) c.for_each([&](int64_t i, int64_t j) { c.at(i, j) = start_of(i, j); });
  Fetch fetch = fetch_of(b, c);
  multiply_block(m, n, k, a, {b.data(), n + 1}, c.data(), c.stride, start == Start::itself,
                 start == Start::bias ? bias.data() : nullptr, start == Start::zero ? nullptr : &fetch);
  c.for_each([&](int64_t i, int64_t j) {
    float total = start_of(i, j), sum = 0;
    for (int64_t t = 0; t < k; ++t) {
      if (t > 0 && t % kernels::kTermsOfSum == 0) total += std::exchange(sum, 0.0F);
      sum = std::fma(a.data[i * a.row + t * a.step], b[static_cast<size_t>(t * (n + 1) + j)], sum);
    }
    total += sum;
    ASSERT_EQ(std::bit_cast<uint32_t>(c.at(i, j)), std::bit_cast<uint32_t>(total))
        << shape << " at " << i << ", " << j << (is_transposed ? " of columns" : "");
  });
  EXPECT_EQ(c.count_touched(), 0) << shape;
}

/// Not close to it: the same bits, which is what makes instruction sets and divisions agree. The test
/// nn_block_product_avx2 runs it as on a processor without AVX-512.
TEST(BlockProduct, addsInOrderByFusedMultiplyAdds) {
#if !defined(__OPTIMIZE__)
  return;  // the compiler fuses nothing
#endif
  if (simd::detected_isa() < simd::Isa::avx2) return;  // products are rounded there
  for (const Shape& shape : shapes()) {
    for (const bool is_transposed : {false, true}) {
      for (const Start start : {Start::zero, Start::bias, Start::itself}) expect_in_order(shape, is_transposed, start);
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

std::vector<Pair> pairs(int64_t count, unsigned seed) {
  std::vector<Pair> values;
  const std::vector<float> numbers = normal(2 * count, seed);
  for (size_t i = 0; i < numbers.size(); i += 2) {
    values.push_back({bf16_of(numbers[i]) | bf16_of(numbers[i + 1]) << 16});
  }
  return values;
}

/// With a bias, and then added to what that gave.
TEST(BlockProduct, ofPairsIsThatOfFp64) {
  if (!kernels::has_pair_blocks()) return;
  for (const Shape& shape : shapes()) {
    const auto& [m, n, k] = shape;
    const std::vector<Pair> values = pairs(left_count(shape), 2), b = pairs(k * (n + 1) + n, 4);
    const std::vector<float> bias = normal(n, 1);
    for (const bool is_transposed : {false, true}) {
      const auto a = left(values, shape, is_transposed);
      Result c(shape);
      Fetch fetch = fetch_of(b, c);
      multiply_block(m, n, k, a, {b.data(), n + 1}, c.data(), c.stride, false, bias.data(), &fetch);
      multiply_block(m, n, k, a, {b.data(), n + 1}, c.data(), c.stride, true);
      c.for_each([&](int64_t i, int64_t j) {
        double sum = bias[static_cast<size_t>(j)], sizes = std::abs(sum);
        for (int64_t t = 0; t < k; ++t) {
          const uint32_t x = a.data[i * a.row + t * a.step].bits, y = b[static_cast<size_t>(t * (n + 1) + j)].bits;
          for (const int shift : {0, 16}) {
            const double product = double{float_of(x >> shift & 0xffff)} * float_of(y >> shift & 0xffff);
            sum += 2 * product;
            sizes += 2 * std::abs(product);
          }
        }
        // Each addition rounds to 24 bits.
        ASSERT_NEAR(c.at(i, j), sum, static_cast<double>(2 * k + 2) * 0x1p-24 * sizes) << shape;
      });
      EXPECT_EQ(c.count_touched(), 0) << shape;
    }
  }
}

}  // namespace
}  // namespace caravan::block_product_test
