#include "caravan/generate/sampling.h"

#include <cmath>
#include <gmock/gmock.h>
#include <limits>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "tests/data/support.h"

namespace caravan::sampling_test {
namespace {

using ::testing::HasSubstr;

constexpr int kDraws = 20'000;

/// How often each id is sampled at positions 0 .. kDraws - 1.
std::vector<int> histogram(const at::Tensor& logits, const SamplingOptions& options) {
  std::vector<int> counts(static_cast<size_t>(logits.numel()));
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(sample_token(logits, options, i))];
  return counts;
}

/// Chi-square of the counts against `probabilities`; infinite if an id of probability 0 was sampled.
double chi_square(const std::vector<int>& counts, const std::vector<double>& probabilities) {
  double sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double want = probabilities[i] * kDraws;
    if (want == 0 && counts[i] > 0) return std::numeric_limits<double>::infinity();
    if (want > 0) sum += (counts[i] - want) * (counts[i] - want) / want;
  }
  return sum;
}

/// With 5 degrees of freedom chi-square exceeds 20.5 with probability 0.001. The seeds are fixed.
constexpr double kUsual = 20.5;

const std::vector<double> kProbabilities{0.05, 0.4, 0.1, 0.25, 0.05, 0.15};
at::Tensor logits() { return at::tensor(kProbabilities, at::kDouble).log().add(3); }

std::vector<double> normalised(std::vector<double> weights) {
  double total = 0;
  for (const double w : weights) total += w;
  for (double& w : weights) w /= total;
  return weights;
}

TEST(Sampling, TemperatureZeroIsTheLikeliestAndTiesGoToTheSmallerId) {
  const SamplingOptions greedy{.temperature = 0};
  EXPECT_EQ(sample_token(logits(), greedy, 0), 1);
  EXPECT_EQ(sample_token(at::tensor({1.0, 5.0, 2.0, 5.0}), greedy, 7), 1);
  EXPECT_EQ(sample_token(at::zeros({50}), greedy, 7), 0);
  EXPECT_EQ(sample_token(at::tensor({1.0, 5.0, 2.0, 5.0}), {.temperature = 1, .top_k = 1}, 7), 1);
  EXPECT_EQ(sample_token(at::tensor({-INFINITY, -3.0, -INFINITY}), {}, 7), 1);
}

TEST(Sampling, DrawsByProbability) {
  for (const uint64_t seed : {0, 1, 2}) {
    const SamplingOptions options{.temperature = 1, .top_k = 0, .seed = seed};
    EXPECT_LT(chi_square(histogram(logits(), options), kProbabilities), kUsual) << seed;
  }
}

TEST(Sampling, TemperatureSharpensAndFlattens) {
  for (const double temperature : {0.5, 2.0}) {
    std::vector<double> want = kProbabilities;
    for (double& p : want) p = std::pow(p, 1 / temperature);
    const SamplingOptions options{.temperature = temperature, .top_k = 0, .seed = 4};
    EXPECT_LT(chi_square(histogram(logits(), options), normalised(want)), kUsual) << temperature;
  }
  EXPECT_EQ(sample_token(logits(), {.temperature = 1e-300}, 3), 1);
}

TEST(Sampling, TopKKeepsTheLikeliest) {
  const SamplingOptions options{.temperature = 1, .top_k = 3, .seed = 5};
  EXPECT_LT(chi_square(histogram(logits(), options), normalised({0, 0.4, 0, 0.25, 0, 0.15})), kUsual);
  // Ties at the cut-off: the smaller id is kept. k above the vocabulary: all are kept.
  const SamplingOptions five{.temperature = 1, .top_k = 5, .seed = 5};
  EXPECT_LT(chi_square(histogram(logits(), five), normalised({0.05, 0.4, 0.1, 0.25, 0, 0.15})), kUsual);
  const SamplingOptions many{.temperature = 1, .top_k = 100, .seed = 5};
  EXPECT_LT(chi_square(histogram(logits(), many), kProbabilities), kUsual);
}

TEST(Sampling, TopPKeepsTheLikeliestThatReachIt) {
  const auto with = [](double top_p, int64_t top_k = 0) {
    return SamplingOptions{.temperature = 1, .top_k = top_k, .top_p = top_p, .seed = 6};
  };
  EXPECT_LT(chi_square(histogram(logits(), with(0.7)), normalised({0, 0.4, 0, 0.25, 0, 0.15})), kUsual);
  EXPECT_EQ(histogram(logits(), with(0.39))[1], kDraws);
  EXPECT_EQ(histogram(logits(), with(1e-9))[1], kDraws);
  // After top_k, 0.4 of the remaining 0.65 is 0.615.
  EXPECT_EQ(histogram(logits(), with(0.6, 2))[1], kDraws);
  EXPECT_LT(chi_square(histogram(logits(), with(0.63, 2)), normalised({0, 0.4, 0, 0.25, 0, 0})), kUsual);
}

TEST(Sampling, IsAFunctionOfSeedAndPlace) {
  const SamplingOptions a{.temperature = 1, .seed = 1}, b{.temperature = 1, .seed = 2};
  int same = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(sample_token(logits(), a, i), sample_token(logits(), a, i));
    same += sample_token(logits(), a, i) == sample_token(logits(), b, i) ? 1 : 0;
  }
  EXPECT_LT(same, 400);  // 260 are expected
  EXPECT_EQ(sample_token(logits().to(at::kBFloat16), {.temperature = 0}, 0), 1);
}

TEST(Sampling, TheRepetitionPenaltyMatchesTransformers) {
  std::vector<float> few{2, -1, 0, 4, -8};
  apply_repetition_penalty(few, std::vector<int64_t>{1, 0, 1, 2, 4}, 2);
  EXPECT_EQ(few, (std::vector<float>{1, -2, 0, 4, -16})) << "once for an id that occurs twice";
  // RepetitionPenaltyLogitsProcessor, to the bit.
  const at::Tensor scores = at::sin(at::arange(500, at::kFloat)) * 9;
  const at::Tensor ids = at::arange(40, at::kLong) * 37 % 211;
  for (const double penalty : {1.0, 1.1, 1.3, 0.7, 5.0}) {
    const at::Tensor old = scores.gather(0, ids);
    const at::Tensor want = scores.scatter(0, ids, at::where(old < 0, old * penalty, old / penalty));
    std::vector<float> got(scores.const_data_ptr<float>(), scores.const_data_ptr<float>() + scores.numel());
    apply_repetition_penalty(got, {ids.const_data_ptr<int64_t>(), 40}, penalty);
    EXPECT_TRUE(at::tensor(got).equal(want)) << penalty;
  }
}

TEST(Sampling, ThePenaltyComesBeforeTheTemperature) {
  const std::vector<int64_t> text{1};
  const SamplingOptions greedy{.temperature = 0, .repetition_penalty = 3};
  EXPECT_EQ(sample_token(at::tensor({1.0, 5.0, 2.0}), greedy, 0, text), 2);
  EXPECT_EQ(sample_token(at::tensor({1.0, 5.0, 2.0}), greedy, 0), 1);
  EXPECT_EQ(sample_token(at::tensor({-4.0, -2.0, -5.0}), greedy, 0, text), 0);
}

TEST(Sampling, RefusesInvalidOptionsAndLogits) {
  const auto refusal = [](const SamplingOptions& options) {
    return message_of<UsageError>([&] { options.validate(); });
  };
  EXPECT_THAT(refusal({.temperature = -0.1}), HasSubstr("temperature"));
  EXPECT_THAT(refusal({.temperature = NAN}), HasSubstr("temperature"));
  EXPECT_THAT(refusal({.top_k = -1}), HasSubstr("top_k"));
  EXPECT_THAT(refusal({.top_p = 0}), HasSubstr("top_p"));
  EXPECT_THAT(refusal({.top_p = 1.5}), HasSubstr("top_p"));
  for (const double penalty : {0.0, -1.2, 1e9, double{NAN}}) {
    EXPECT_THAT(refusal({.repetition_penalty = penalty}), HasSubstr("repetition_penalty")) << penalty;
  }
  EXPECT_NO_THROW(SamplingOptions{}.validate());
  for (const double bad : {NAN, INFINITY}) {
    EXPECT_NE(message_of<NumericsError>([&] { sample_token(at::tensor({1.0, bad, 2.0}), {}, 0); }), "");
  }
  EXPECT_NE(message_of<NumericsError>([&] { sample_token(at::full({3}, -INFINITY), {}, 0); }), "");
}

}  // namespace
}  // namespace caravan::sampling_test
