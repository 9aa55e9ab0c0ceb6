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

/// The probability of each id.
std::vector<double> probabilities(const at::Tensor& logits, const SamplingOptions& options,
                                  const std::vector<int64_t>& text = {}, size_t num_made = 0) {
  std::vector<double> all(static_cast<size_t>(logits.numel()));
  double total = 0;
  const std::vector<Candidate> kept = candidates(logits, options, text, num_made);
  for (const Candidate& one : kept) total += one.weight;
  for (const Candidate& one : kept) all[static_cast<size_t>(one.id)] = one.weight / total;
  return all;
}

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

/// Computed by the processors of transformers 5.24, in the order of its generate().
TEST(Sampling, FiltersAndPenaltiesKeepWhatThoseOfTransformersKeep) {
  const at::Tensor logits = at::tensor({1.5, -0.3, 2.1, 0.4, 0.9, -2.2, 1.9, 0.0});
  const std::vector<int64_t> text{2, 6, 2};
  struct Case {
    SamplingOptions options;
    std::vector<double> wanted;
  };
  const std::vector<Case> cases{
      {{.temperature = 1, .top_k = 0, .min_p = 0.3}, {0.205645, 0, 0.374709, 0, 0.112860, 0, 0.306786, 0}},
      {{.temperature = 2, .top_k = 0, .min_p = 0.3},
       {0.173371, 0.070488, 0.234027, 0.100027, 0.128437, 0, 0.211756, 0.081895}},
      {{.temperature = 1, .top_k = 0, .min_p = 1}, {0, 0, 1, 0, 0, 0, 0, 0}},
      {{.temperature = 1, .top_k = 0, .typical_p = 0.5}, {0.231806, 0, 0.422379, 0, 0, 0, 0.345815, 0}},
      {{.temperature = 1, .top_k = 0, .typical_p = 0.2}, {0.401312, 0, 0, 0, 0, 0, 0.598688, 0}},
      {{.temperature = 0.7, .top_k = 0, .typical_p = 0.9}, {0.180129, 0, 0.424459, 0, 0.076442, 0, 0.318971, 0}},
      {{.temperature = 1.7, .top_k = 7, .top_p = 0.95, .min_p = 0.2, .typical_p = 0.6},
       {0.227731, 0, 0.324117, 0, 0.160008, 0, 0.288144, 0}},
      {{.temperature = 1.7,
        .top_k = 6,
        .top_p = 0.9,
        .min_p = 0.1,
        .typical_p = 0.8,
        .repetition_penalty = 1.3,
        .logit_bias = {{4, 1.25}, {0, -0.75}}},
       {0.154751, 0, 0.257461, 0, 0.352604, 0, 0.235184, 0}}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::vector<double> found = probabilities(logits, cases[i].options, text);
    for (size_t id = 0; id < found.size(); ++id) {
      EXPECT_NEAR(found[id], cases[i].wanted[id], 1e-6) << "case " << i << ", id " << id;  // they are fp32
    }
  }
}

/// mu[j] - c[j] * frequency - (c[j] > 0) * presence, with c of the generated tokens alone.
TEST(Sampling, FrequencyAndPresencePenaltiesCountWhatWasGenerated) {
  const at::Tensor logits = at::tensor({1.5, -0.3, 2.1, 0.4});
  const std::vector<int64_t> text{3, 2, 0, 2};  // a prompt of one token
  const SamplingOptions options{.temperature = 1, .top_k = 0, .frequency_penalty = 0.5, .presence_penalty = 0.25};
  const auto wanted = at::tensor({1.5 - 0.75, -0.3, 2.1 - 1.25, 0.4}, at::kDouble).softmax(0);
  const std::vector<double> found = probabilities(logits, options, text, 3);
  for (size_t id = 0; id < 4; ++id) EXPECT_NEAR(found[id], wanted[static_cast<int64_t>(id)].item<double>(), 1e-6);
  EXPECT_EQ(sample_token(logits, {.temperature = 0, .frequency_penalty = 2}, 5, text, 3), 3);
  EXPECT_EQ(sample_token(logits, {.temperature = 0, .frequency_penalty = 2}, 5, text), 2);
}

TEST(Sampling, LogProbabilitiesAreTheLogSoftmax) {
  const at::Tensor logits = at::tensor({1.5, -0.3, 2.1, 0.4, 0.9, -2.2, 1.9, 0.0});
  EXPECT_NEAR(log_probability(logits, 2), -1.124333143, 1e-6);
  EXPECT_NEAR(log_probability(logits.add(500), 5), -5.424333572, 1e-4);  // fp32 at 500 has 3e-5
}

TEST(Sampling, NewOptionsOutOfRangeAreRefused) {
  const at::Tensor two = at::tensor({1.0, 2.0});
  const std::vector<std::pair<SamplingOptions, const char*>> wrong{{{.min_p = -0.1}, "min_p"},
                                                                   {{.min_p = 1.5}, "min_p"},
                                                                   {{.typical_p = 0}, "typical_p"},
                                                                   {{.frequency_penalty = 2.5}, "frequency_penalty"},
                                                                   {{.presence_penalty = NAN}, "presence_penalty"},
                                                                   {{.logit_bias = {{0, 101}}}, "logit_bias"}};
  for (const auto& [options, name] : wrong) {
    EXPECT_THAT(message_of<UsageError>([options = options] { options.validate(); }), HasSubstr(name));
  }
  EXPECT_THAT(message_of<UsageError>([&] {
                sample_token(two, {.logit_bias = {{2, 1}}}, 0);
              }),
              HasSubstr("token 2 is not among 2"));
}

}  // namespace
}  // namespace caravan::sampling_test
