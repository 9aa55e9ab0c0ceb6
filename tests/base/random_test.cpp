#include "caravan/base/numeric/random.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "caravan/base/numeric/philox.h"
#include "caravan/base/numeric/random_kernels.h"
#include "caravan/base/numeric/simd.h"

namespace caravan::random_test {
namespace {

std::vector<float> normals(const RandomStream& stream, uint64_t first, size_t count) {
  std::vector<float> out(count);
  stream.normal(first, out);
  return out;
}

double correlation(const std::vector<float>& a, const std::vector<float>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0) / static_cast<double>(a.size());
}

// The known-answer vectors of Random123 by the authors of Philox (kat_vectors, philox4x32, 10 rounds).
TEST(Philox, KnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

/// Every way to draw [first, first + count) in two parts, at any alignment of the memory, gives the same bits.
template <class Draw>
void expect_split_invariant(Draw draw) {
  const uint64_t first = *rc::gen::weightedOneOf<uint64_t>(
      {{3, rc::gen::inRange<uint64_t>(0, 100)}, {1, rc::gen::just<uint64_t>((uint64_t{1} << 34) - 50)}});
  const size_t count = *rc::gen::inRange<size_t>(0, 300);
  const size_t cut = *rc::gen::inRange<size_t>(0, count + 1);
  const size_t shift = *rc::gen::inRange<size_t>(0, 5);
  std::vector<float> whole(count);
  std::vector<float> parts(count + shift);
  draw(first, std::span(whole));
  draw(first, std::span(parts).subspan(shift, cut));
  draw(first + cut, std::span(parts).subspan(shift + cut, count - cut));
  parts.erase(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(shift));
  RC_ASSERT(parts == whole);
}

RC_GTEST_PROP(RandomStream, AnySplitGivesTheSameBits, ()) {
  const RandomStream stream(7, "layer", 3);
  expect_split_invariant([&](uint64_t first, std::span<float> out) { stream.uniform(first, out); });
  expect_split_invariant([&](uint64_t first, std::span<float> out) { stream.normal(first, out); });
  expect_split_invariant([&](uint64_t first, std::span<float> out) { stream.dropout_mask(first, 0.9F, out); });
}

TEST(RandomStream, DrawsComeFromItsBits) {
  const RandomStream stream(1, "x");
  std::vector<float> uniform(1000);
  std::vector<float> mask(1000);
  stream.uniform(17, uniform);
  stream.dropout_mask(17, 0.8F, mask);
  for (size_t k = 0; k < uniform.size(); ++k) {
    const float expected = std::ldexp(static_cast<float>(stream.bits(17 + k) >> 8), -24);
    ASSERT_EQ(uniform[k], expected);
    ASSERT_EQ(mask[k], expected < 0.8F ? 1 / 0.8F : 0.0F);
  }
}

// 1e-6: a few units in the last place of polynomials with results below 7.
TEST(RandomStream, NormalsAreBoxMullerOfItsBits) {
  const RandomStream stream(5, "normal");
  const auto draws = normals(stream, 0, 20000);
  for (size_t j = 0; j < draws.size(); j += 2) {
    const float u = std::ldexp(static_cast<float>(stream.bits(j) >> 1) + 1, -31);
    const double angle = 2 * M_PI * stream.bits(j + 1) * std::ldexp(1.0, -32);
    const double radius = std::sqrt(-2 * std::log(double{u}));
    ASSERT_NEAR(draws[j], radius * std::cos(angle), 1e-6) << j;
    ASSERT_NEAR(draws[j + 1], radius * std::sin(angle), 1e-6) << j;
  }
}

template <class Kernel, class... Args>
void expect_every_isa_equal(Args... args) {
  constexpr uint64_t kBlocks = 1003;
  std::array<std::vector<float>, 3> out;
  for (auto& v : out) v.assign(4 * kBlocks, -1);
  simd::run_baseline<Kernel>(uint64_t{5}, kBlocks, uint64_t{11}, uint64_t{13}, out[0].data(), args...);
  simd::dispatch<Kernel>(uint64_t{5}, kBlocks, uint64_t{11}, uint64_t{13}, out[1].data(), args...);
  EXPECT_EQ(out[0], out[1]);
#if defined(__x86_64__)
  if (simd::isa() >= simd::Isa::avx2) {
    simd::run_avx2<Kernel>(uint64_t{5}, kBlocks, uint64_t{11}, uint64_t{13}, out[2].data(), args...);
    EXPECT_EQ(out[0], out[2]);
  }
#endif
}

TEST(RandomStream, EveryInstructionSetGivesTheSameBits) {
  expect_every_isa_equal<random_kernels::Uniform>();
  expect_every_isa_equal<random_kernels::Normal>();
  expect_every_isa_equal<random_kernels::DropoutMask>(0.9F);
}

// Bounds are five standard errors of each statistic, for a fixed seed.
TEST(RandomStream, NormalsHaveNormalMomentsAndDistribution) {
  constexpr size_t kCount = 1 << 20;
  auto draws = normals(RandomStream(42, "moments"), 0, kCount);
  std::array<double, 4> moment{};
  for (const float x : draws) {
    double power = 1;
    for (double& m : moment) m += power *= x;
  }
  for (double& m : moment) m /= kCount;
  const double error = 1 / std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(moment[0], 0, 5 * error);
  EXPECT_NEAR(moment[1], 1, 5 * error * std::sqrt(2));
  EXPECT_NEAR(moment[2], 0, 5 * error * std::sqrt(15));
  EXPECT_NEAR(moment[3], 3, 5 * error * std::sqrt(96));
  std::sort(draws.begin(), draws.end());
  double distance = 0;  // Kolmogorov-Smirnov; 1.95 / sqrt(n) is its 0.1 % quantile
  for (size_t k = 0; k < kCount; ++k) {
    const double cdf = 0.5 * std::erfc(-draws[k] / std::sqrt(2));
    distance = std::max({distance, std::abs(cdf - static_cast<double>(k) / kCount),
                         std::abs(cdf - static_cast<double>(k + 1) / kCount)});
  }
  EXPECT_LT(distance, 1.95 * error);
  EXPECT_GT(draws.back(), 4.5);  // tails exist: 4 of a million are beyond 4.5 on each side
  EXPECT_LT(draws.front(), -4.5);
}

TEST(RandomStream, StreamsAreIndependent) {
  constexpr size_t kCount = 1 << 18;
  const auto base = normals(RandomStream(1, "a", 0), 0, kCount);
  const double bound = 5 / std::sqrt(static_cast<double>(kCount));
  EXPECT_LT(std::abs(correlation(base, normals(RandomStream(2, "a", 0), 0, kCount))), bound);
  EXPECT_LT(std::abs(correlation(base, normals(RandomStream(1, "b", 0), 0, kCount))), bound);
  EXPECT_LT(std::abs(correlation(base, normals(RandomStream(1, "a", 1), 0, kCount))), bound);
  EXPECT_LT(std::abs(correlation(base, normals(RandomStream(1, "a", 0), 1, kCount))), bound);
  EXPECT_EQ(base, normals(RandomStream(1, "a", 0), 0, kCount));
}

TEST(RandomStream, DropoutKeepsTheShareAndTheMean) {
  std::vector<float> mask(1 << 20);
  RandomStream(3, "dropout", 9).dropout_mask(0, 0.9F, mask);
  const double mean = std::accumulate(mask.begin(), mask.end(), 0.0) / static_cast<double>(mask.size());
  EXPECT_NEAR(mean, 1, 5 * std::sqrt(0.1 / 0.9 / static_cast<double>(mask.size())));
  RandomStream(3, "dropout", 9).dropout_mask(0, 1.0F, mask);
  EXPECT_EQ(std::count(mask.begin(), mask.end(), 1.0F), static_cast<std::ptrdiff_t>(mask.size()));
}

// A changed definition of the streams would silently change every run and break --resume of older checkpoints.
TEST(RandomStream, StreamsAreStableAcrossVersions) {
  EXPECT_EQ(RandomStream(0, "").bits(0), 0x5fdeee09U);
  EXPECT_EQ(RandomStream(1234, "blocks.0.attention.query.weight", 7).bits(1000003), 0x079e441eU);
}

TEST(RandomPermutation, IsABijectionOfEverySize) {
  for (const uint64_t size : {1U, 2U, 3U, 4U, 5U, 7U, 16U, 17U, 63U, 64U, 65U, 100U, 1000U, 4097U, 65537U}) {
    const RandomPermutation permutation(1, "shuffle", 0, size);
    std::vector<bool> seen(size, false);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t j = permutation(i);
      ASSERT_LT(j, size);
      ASSERT_FALSE(seen[j]) << size;
      seen[j] = true;
    }
  }
}

TEST(RandomPermutation, LooksShuffledAndDependsOnItsStream) {
  constexpr uint64_t kSize = 20000;
  const RandomPermutation permutation(1, "shuffle", 0, kSize);
  const RandomPermutation next_epoch(1, "shuffle", 1, kSize);
  double product = 0;
  int equal = 0;
  int neighbours = 0;
  for (uint64_t i = 0; i < kSize; ++i) {
    const double centre = (kSize - 1) / 2.0;
    product += (static_cast<double>(i) - centre) * (static_cast<double>(permutation(i)) - centre);
    equal += permutation(i) == next_epoch(i) ? 1 : 0;
    neighbours += i > 0 && permutation(i) == permutation(i - 1) + 1 ? 1 : 0;
  }
  const double variance = (double{kSize} * kSize - 1) / 12;
  EXPECT_LT(std::abs(product / kSize / variance), 5 / std::sqrt(double{kSize}));
  EXPECT_LT(equal, 10);       // expected 1, Poisson
  EXPECT_LT(neighbours, 10);  // expected 1, Poisson
}

TEST(RandomPermutation, SmallOnesHaveManyOrders) {
  std::set<std::array<uint64_t, 4>> orders;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const RandomPermutation permutation(seed, "shuffle", 0, 4);
    orders.insert({permutation(0), permutation(1), permutation(2), permutation(3)});
  }
  EXPECT_GE(orders.size(), 12U);  // of 24
}

}  // namespace
}  // namespace caravan::random_test
