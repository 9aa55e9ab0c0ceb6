#include "caravan/nn/cross_entropy.h"

#include <cmath>
#include <limits>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/base/memory_counter.h"
#include "tests/nn/tiny.h"
#include "tests/ranks/rank_case.h"

namespace caravan {
namespace {

using testing::distance;
using testing::error_of;
using ::testing::HasSubstr;
using testing::normal;

struct Problem {
  at::Tensor hidden;
  at::Tensor weight;
  at::Tensor labels;
};

Problem problem(std::vector<int64_t> batch, int64_t width, int64_t vocabulary, at::ScalarType type) {
  std::vector<int64_t> shape = batch;
  shape.push_back(width);
  const at::Tensor labels = testing::tokens(1, c10::multiply_integers(batch), vocabulary, 3).view(batch);
  return {normal(shape, 1).to(type).requires_grad_(true), normal({vocabulary, width}, 2).to(type).requires_grad_(true),
          labels};
}

struct Result {
  at::Tensor loss;
  at::Tensor hidden;
  at::Tensor weight;
};

/// Loss and gradients. The loss is scaled again after the op, as that of a micro-batch could be.
Result fused(const Problem& p, double scale, double outer = 1) {
  const at::Tensor hidden = p.hidden.detach().requires_grad_(true);
  const at::Tensor weight = p.weight.detach().requires_grad_(true);
  const at::Tensor loss = fused_cross_entropy(hidden, weight, p.labels, scale);
  (loss * outer).backward();
  return {loss.detach(), hidden.grad(), weight.grad()};
}

Result reference(const Problem& p, double scale, double outer = 1, at::ScalarType type = at::kDouble) {
  const at::Tensor hidden = p.hidden.detach().to(type).requires_grad_(true);
  const at::Tensor weight = p.weight.detach().to(type).requires_grad_(true);
  const at::Tensor logits = at::linear(hidden, weight).flatten(0, -2);
  const at::Tensor loss =
      at::cross_entropy_loss(logits, p.labels.flatten(), {}, at::Reduction::Sum, kIgnoredLabel) * scale;
  (loss * outer).backward();
  return {loss.detach(), hidden.grad(), weight.grad()};
}

void expect_near(const Result& a, const Result& b, double tolerance) {
  EXPECT_LT(distance(a.loss, b.loss), tolerance);
  EXPECT_LT(distance(a.hidden, b.hidden), tolerance);
  EXPECT_LT(distance(a.weight, b.weight), tolerance);
}

class CrossEntropy : public ::testing::TestWithParam<std::tuple<std::vector<int64_t>, int64_t>> {
 protected:
  Problem make(at::ScalarType type) const { return problem(std::get<0>(GetParam()), 5, std::get<1>(GetParam()), type); }
};

TEST_P(CrossEntropy, equalsAtenInFp64) {
  Problem p = make(at::kDouble);
  expect_near(fused(p, 0.37), reference(p, 0.37), 1e-13);
  p.labels.view(-1)[0] = kIgnoredLabel;
  p.labels.view(-1)[p.labels.numel() / 2] = kIgnoredLabel;
  if (p.labels.numel() > 2) expect_near(fused(p, 0.37, -2), reference(p, 0.37, -2), 1e-13);
}

TEST_P(CrossEntropy, fp32IsWithinItsRounding) {
  const Problem p = make(at::kFloat);
  expect_near(fused(p, 1), reference(p, 1), 4e-6);  // ATen's own fp32 is 2e-6 off where softmax - 1 cancels
}

TEST_P(CrossEntropy, bf16KeepsItsStatisticsInFp32) {
  const Problem p = make(at::kBFloat16);
  const Result ours = fused(p, 1);
  EXPECT_EQ(ours.loss.scalar_type(), at::kFloat);
  EXPECT_EQ(ours.weight.scalar_type(), at::kBFloat16);
  expect_near(ours, reference(p, 1), 0.02);  // logits and gradients are rounded to 8 bits once each
}

// One token; a tiny vocabulary; whole and partial vectors; 3 chunks of 201, 201 and 199 tokens.
INSTANTIATE_TEST_SUITE_P(, CrossEntropy,
                         ::testing::Combine(::testing::Values(std::vector<int64_t>{1}, std::vector<int64_t>{2, 7},
                                                              std::vector<int64_t>{1, 601}),
                                            ::testing::Values<int64_t>(2, 16, 37, 4099)));

TEST(CrossEntropyEdges, allIgnoredIsNothing) {
  Problem p = problem({2, 3}, 4, 5, at::kFloat);
  p.labels.fill_(kIgnoredLabel);
  const Result result = fused(p, 1);
  EXPECT_EQ(result.loss.item<float>(), 0);
  EXPECT_EQ(result.hidden.abs().sum().item<float>(), 0);
  EXPECT_EQ(result.weight.abs().sum().item<float>(), 0);
}

TEST(CrossEntropyEdges, noTokensIsNothing) {
  const Problem p = problem({0, 3}, 4, 5, at::kFloat);
  const Result result = fused(p, 1);
  EXPECT_EQ(result.loss.item<float>(), 0);
  EXPECT_EQ(result.weight.abs().sum().item<float>(), 0);
}

TEST(CrossEntropyEdges, largeLogitsDoNotOverflow) {
  Problem p = problem({4}, 3, 7, at::kFloat);
  p.hidden = p.hidden.detach().mul(1e3).requires_grad_(true);
  expect_near(fused(p, 1), reference(p, 1), 1e-5);
}

TEST(CrossEntropyEdges, whatIsNotFiniteStaysSo) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const int64_t vocabulary : {7, 33}) {
      Problem p = problem({4}, 3, vocabulary, at::kFloat);
      p.hidden.detach()[2][1] = bad;
      EXPECT_FALSE(std::isfinite(fused(p, 1).loss.item<float>()));
    }
  }
}

TEST(CrossEntropyEdges, aLabelOutOfRangeIsRefused) {
  for (const int64_t bad : {int64_t{-1}, int64_t{5}, int64_t{-101}, int64_t{1} << 40}) {
    Problem p = problem({2, 3}, 4, 5, at::kFloat);
    p.labels[1][1] = bad;
    EXPECT_THAT(error_of<DataError>([&] { fused_cross_entropy(p.hidden, p.weight, p.labels, 1); }),
                HasSubstr("label " + std::to_string(bad) + " of token 4 is outside of the vocabulary of 5"));
  }
}

TEST(CrossEntropyEdges, shapesAndTypesThatDoNotFitAreRefused) {
  const Problem p = problem({2, 3}, 4, 5, at::kFloat);
  EXPECT_THROW(fused_cross_entropy(p.hidden, p.weight, p.labels.view({-1}), 1), ShapeError);
  EXPECT_THROW(fused_cross_entropy(p.hidden, p.weight.t(), p.labels, 1), ShapeError);
  EXPECT_THROW(fused_cross_entropy(p.hidden, p.weight.to(at::kDouble), p.labels, 1), ShapeError);
  EXPECT_THROW(fused_cross_entropy(p.hidden, p.weight, p.labels.to(at::kInt), 1), ShapeError);
}

TEST(CrossEntropyEdges, onlyWhatNeedsAGradientGetsOne) {
  const Problem p = problem({2, 3}, 4, 5, at::kFloat);
  const at::Tensor frozen = p.weight.detach();
  fused_cross_entropy(p.hidden, frozen, p.labels, 1).backward();
  const Result expected = reference(p, 1);
  EXPECT_LT(distance(p.hidden.grad(), expected.hidden), 1e-6);
  EXPECT_FALSE(fused_cross_entropy(p.hidden.detach(), frozen, p.labels, 1).requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_LT(distance(fused_cross_entropy(p.hidden, p.weight, p.labels, 1), expected.loss), 1e-6);
}

TEST(CrossEntropyMemory, neverHoldsTokensTimesVocabulary) {
  constexpr int64_t kTokens = 2048;
  constexpr int64_t kVocabulary = 2048;
  constexpr int64_t kWidth = 8;
  const Problem p = problem({kTokens}, kWidth, kVocabulary, at::kFloat);
  MemoryCounter& counter = MemoryCounter::current();
  counter.reset_peak();
  const int64_t before = counter.live_bytes();
  fused_cross_entropy(p.hidden, p.weight, p.labels, 1).backward();
  EXPECT_LT(counter.peak_bytes() - before, kTokens * kVocabulary * 4 / 3);
}

}  // namespace
}  // namespace caravan
