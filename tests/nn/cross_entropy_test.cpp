#include "caravan/nn/loss/cross_entropy.h"

#include <cmath>
#include <limits>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "tests/nn/compare.h"
#include "tests/nn/tiny.h"
#include "tests/ranks/rank_case.h"

namespace caravan::cross_entropy_test {
namespace {

using ::testing::AllOf;
using testing::distance;
using testing::error_of;
using ::testing::HasSubstr;
using testing::normal;
using testing::Slots;

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

at::Tensor loss_of(Parameter& weight, const at::Tensor& hidden, const at::Tensor& labels, double scale = 1) {
  CrossEntropy cross_entropy(weight);
  return cross_entropy.run({hidden, labels}, {.loss_scale = scale}).front();
}

/// Loss and gradients.
Result fused(const Problem& p, double scale) {
  Slots slots;
  const at::Tensor hidden = p.hidden.detach().requires_grad_(true);
  const at::Tensor weight = p.weight.detach().requires_grad_(true);
  const at::Tensor loss = loss_of(slots.of(weight), hidden, p.labels, scale);
  loss.backward();
  return {loss.detach(), hidden.grad(), weight.grad()};
}

Result reference(const Problem& p, double scale, at::ScalarType type = at::kDouble) {
  const at::Tensor hidden = p.hidden.detach().to(type).requires_grad_(true);
  const at::Tensor weight = p.weight.detach().to(type).requires_grad_(true);
  const at::Tensor logits = at::linear(hidden, weight).flatten(0, -2);
  const at::Tensor loss =
      at::cross_entropy_loss(logits, p.labels.flatten(), {}, at::Reduction::Sum, kIgnoredLabel) * scale;
  loss.backward();
  return {loss.detach(), hidden.grad(), weight.grad()};
}

void expect_near(const Result& a, const Result& b, double tolerance) {
  EXPECT_LT(distance(a.loss, b.loss), tolerance);
  EXPECT_LT(distance(a.hidden, b.hidden), tolerance);
  EXPECT_LT(distance(a.weight, b.weight), tolerance);
}

class CrossEntropyValues : public ::testing::TestWithParam<std::tuple<std::vector<int64_t>, int64_t>> {
 protected:
  Problem make(at::ScalarType type) const { return problem(std::get<0>(GetParam()), 5, std::get<1>(GetParam()), type); }
};

TEST_P(CrossEntropyValues, equalsAtenInFp64) {
  Problem p = make(at::kDouble);
  expect_near(fused(p, 0.37), reference(p, 0.37), 1e-13);
  p.labels.view(-1)[0] = kIgnoredLabel;
  p.labels.view(-1)[p.labels.numel() / 2] = kIgnoredLabel;
  if (p.labels.numel() > 2) expect_near(fused(p, -0.7), reference(p, -0.7), 1e-13);
}

TEST_P(CrossEntropyValues, fp32IsWithinItsRounding) {
  const Problem p = make(at::kFloat);
  expect_near(fused(p, 1), reference(p, 1), 4e-6);  // ATen's own fp32 is 2e-6 off where softmax - 1 cancels
}

TEST_P(CrossEntropyValues, bf16KeepsItsStatisticsInFp32) {
  const Problem p = make(at::kBFloat16);
  const Result ours = fused(p, 1);
  EXPECT_EQ(ours.loss.scalar_type(), at::kFloat);
  EXPECT_EQ(ours.weight.scalar_type(), at::kBFloat16);
  expect_near(ours, reference(p, 1), 0.02);  // logits and gradients are rounded to 8 bits once each
}

// One token; a tiny vocabulary; whole and partial vectors; 3 chunks of 201, 201 and 199 tokens.
INSTANTIATE_TEST_SUITE_P(, CrossEntropyValues,
                         ::testing::Combine(::testing::Values(std::vector<int64_t>{1}, std::vector<int64_t>{2, 7},
                                                              std::vector<int64_t>{1, 601}),
                                            ::testing::Values<int64_t>(2, 16, 37, 4099)));

TEST(CrossEntropyEdges, allIgnoredIsZero) {
  Problem p = problem({2, 3}, 4, 5, at::kFloat);
  p.labels.fill_(kIgnoredLabel);
  const Result result = fused(p, 1);
  EXPECT_EQ(result.loss.item<float>(), 0);
  EXPECT_EQ(result.hidden.abs().sum().item<float>(), 0);
  EXPECT_EQ(result.weight.abs().sum().item<float>(), 0);
}

TEST(CrossEntropyEdges, noTokensIsZero) {
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
    Slots slots;
    Parameter& weight = slots.of(p.weight);
    EXPECT_THAT(error_of<DataError>([&] { loss_of(weight, p.hidden, p.labels); }),
                HasSubstr("label " + std::to_string(bad) + " of token 4 is outside of the vocabulary of 5"));
  }
}

TEST(CrossEntropyEdges, shapesAndTypesThatDoNotFitAreRefused) {
  const Problem p = problem({2, 3}, 4, 5, at::kFloat);
  Slots slots;
  Parameter& weight = slots.of(p.weight);
  Parameter& transposed = slots.of(p.weight.detach().t());
  Parameter& wide = slots.of(p.weight.detach().to(at::kDouble));
  EXPECT_THROW(loss_of(weight, p.hidden, p.labels.view({-1})), ShapeError);
  EXPECT_THROW(loss_of(transposed, p.hidden, p.labels), ShapeError);
  EXPECT_THROW(loss_of(wide, p.hidden, p.labels), ShapeError);
  EXPECT_THROW(loss_of(weight, p.hidden, p.labels.to(at::kInt)), ShapeError);
}

TEST(CrossEntropyEdges, onlyWhatNeedsAGradientGetsOne) {
  const Problem p = problem({2, 3}, 4, 5, at::kFloat);
  Slots slots;
  Parameter& frozen = slots.of(p.weight.detach());
  loss_of(frozen, p.hidden, p.labels).backward();
  const Result expected = reference(p, 1);
  EXPECT_LT(distance(p.hidden.grad(), expected.hidden), 1e-6);
  EXPECT_FALSE(frozen.unsharded().grad().defined());
  EXPECT_FALSE(loss_of(frozen, p.hidden.detach(), p.labels).requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_LT(distance(loss_of(slots.of(p.weight), p.hidden, p.labels), expected.loss), 1e-6);
}

TEST(CrossEntropyMemory, neverHoldsTokensTimesVocabulary) {
  constexpr int64_t kTokens = 2048;
  constexpr int64_t kVocabulary = 2048;
  constexpr int64_t kWidth = 8;
  const Problem p = problem({kTokens}, kWidth, kVocabulary, at::kFloat);
  MemoryCounter& counter = MemoryCounter::current();
  counter.reset_peak();
  const int64_t before = counter.live_bytes();
  Slots slots;
  loss_of(slots.of(p.weight), p.hidden, p.labels).backward();
  EXPECT_LT(counter.peak_bytes() - before, kTokens * kVocabulary * 4 / 3);
}

/// Several micro-batches in flight, as in a pipeline.
class CrossEntropyInFlight : public ::testing::Test {
 protected:
  at::Tensor forward(uint64_t seed) {
    const at::Tensor hidden = normal({3, 5, 8}, seed).to(at::kDouble).requires_grad_(true);
    return cross_entropy_.run({hidden, testing::tokens(3, 5, 11, seed)}, {.loss_scale = 0.1}).front();
  }
  /// The sum of the gradients of the weight, each of a forward and a backward at once.
  at::Tensor expected(const std::vector<uint64_t>& seeds) {
    const at::Tensor before = weight_.grad().defined() ? weight_.grad().clone() : at::zeros_like(weight_.detach());
    for (const uint64_t seed : seeds) forward(seed).backward();
    at::Tensor sum = weight_.grad().clone() - before;
    weight_.mutable_grad() = at::Tensor();
    return sum;
  }
  static constexpr const char* kLost = "computed with gradients and never back-propagated";

  at::Tensor weight_ = normal({11, 8}, 2).to(at::kDouble).requires_grad_(true);
  Slots slots_;
  CrossEntropy cross_entropy_{slots_.of(weight_)};
};

TEST_F(CrossEntropyInFlight, theLastBackwardAccumulatesTheSumOfAll) {
  const at::Tensor want = expected({1, 2, 3});
  std::vector<at::Tensor> losses{forward(1), forward(2), forward(3)};
  losses[1].backward();
  losses[0].backward();
  EXPECT_FALSE(weight_.grad().defined());
  losses[2].backward();
  EXPECT_LT(distance(weight_.grad(), want), 1e-14);
}

TEST_F(CrossEntropyInFlight, aPipelineThatIsNeverEmptyAccumulatesAtItsEnd) {
  const at::Tensor want = expected({1, 2, 3});
  const at::Tensor first = forward(1);
  const at::Tensor second = forward(2);
  first.backward();
  const at::Tensor third = forward(3);
  second.backward();
  EXPECT_FALSE(weight_.grad().defined());
  third.backward();
  EXPECT_LT(distance(weight_.grad(), want), 1e-14);
}

TEST_F(CrossEntropyInFlight, theyShareOneBuffer) {
  constexpr int64_t kVocabulary = 4096;
  constexpr int64_t kWidth = 64;
  const at::Tensor value = normal({kVocabulary, kWidth}, 2).requires_grad_(true);
  CrossEntropy cross_entropy(slots_.of(value));
  MemoryCounter& counter = MemoryCounter::current();
  const int64_t before = counter.live_bytes();
  std::vector<at::Tensor> losses;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const at::Tensor hidden = normal({4, kWidth}, seed).requires_grad_(true);
    losses.push_back(cross_entropy.run({hidden, testing::tokens(1, 4, kVocabulary, seed).view({4})}, {}).front());
  }
  EXPECT_LT(counter.live_bytes() - before, kVocabulary * kWidth * 4 * 3 / 2);
}

TEST_F(CrossEntropyInFlight, aLossThatWasAloneMayBeDropped) {
  const at::Tensor want = expected({2});
  forward(1);
  forward(2).backward();
  EXPECT_LT(distance(weight_.grad(), want), 1e-14);
}

TEST_F(CrossEntropyInFlight, aLossThatWasMixedWithOthersMayNot) {
  for (const bool is_first : {true, false}) {
    at::Tensor kept = forward(1);
    at::Tensor dropped = forward(2);
    if (is_first) std::swap(kept, dropped);
    dropped = at::Tensor();
    EXPECT_THAT(error_of<UsageError>([&] { kept.backward(); }), AllOf(HasSubstr(kLost), HasSubstr("NoGradGuard")));
  }
  // Also if the others have been back-propagated before: their summand was never accumulated.
  const at::Tensor kept = forward(1);
  at::Tensor dropped = forward(2);
  kept.backward();
  dropped = at::Tensor();
  EXPECT_THAT(error_of<UsageError>([&] { forward(3).backward(); }), HasSubstr(kLost));
  EXPECT_FALSE(weight_.grad().defined());
  const at::Tensor want = expected({4});  // after the error it begins anew
  forward(4).backward();
  EXPECT_LT(distance(weight_.grad(), want), 1e-14);
}

TEST_F(CrossEntropyInFlight, withoutGradientsNothingIsPending) {
  const at::Tensor want = expected({1});
  const at::Tensor loss = forward(1);
  {
    const at::NoGradGuard no_grad;
    forward(2);
  }
  loss.backward();
  EXPECT_LT(distance(weight_.grad(), want), 1e-14);
}

TEST_F(CrossEntropyInFlight, aGradientOfHiddenAloneAccumulatesNothing) {
  const at::Tensor hidden = normal({3, 5, 8}, 1).to(at::kDouble).requires_grad_(true);
  const at::Tensor loss = cross_entropy_.run({hidden, testing::tokens(3, 5, 11, 1)}, {}).front();
  EXPECT_TRUE(torch::autograd::grad({loss}, {hidden}, {}, /*retain_graph=*/true).front().defined());
  EXPECT_FALSE(weight_.grad().defined());
  loss.backward();
  EXPECT_TRUE(weight_.grad().defined());
}

TEST_F(CrossEntropyInFlight, theGradientOfTheLossIsOne) {
  EXPECT_THAT(error_of<UsageError>([&] { (forward(1) * 2).backward(); }),
              AllOf(HasSubstr("its gradient is 2"), HasSubstr("scale the loss with ForwardContext::loss_scale")));
  const at::Tensor loss = forward(1);
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_THAT(error_of<UsageError>([&] { loss.backward(); }), HasSubstr("was back-propagated before"));
}

}  // namespace
}  // namespace caravan::cross_entropy_test
