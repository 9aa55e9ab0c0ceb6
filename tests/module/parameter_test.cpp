#include "caravan/module/parameter.h"

#include <gmock/gmock.h>
#include <map>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "caravan/base/error.h"
#include "caravan/module/gradients.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::parameter_test {
namespace {

using ::testing::HasSubstr;

/// Sums in fp64, and records the calls.
class Sums final : public GradientSink {
 public:
  int64_t open_step() const noexcept override { return 0; }
  Sum sum_of(Parameter& parameter) override {
    if (is_full) throw NumericsError({.op = "sink", .subject = parameter.name(), .fact = "is full"});
    at::Tensor& sum = of[parameter.name()];
    const bool is_empty = !sum.defined();
    if (is_empty) sum = at::full(parameter.compute().sizes(), 99, at::kDouble);  // undefined contents
    return {sum, is_empty};
  }
  void accumulated(Parameter& parameter) override { ++num_deposits[parameter.name()]; }
  void added_early(Parameter&) override {}
  void confirmed(Parameter&) override {}
  void withdrawn(Parameter&) override {}
  void defer(Parameter&, std::function<void()> work) override { deferred.push_back(std::move(work)); }

  std::map<std::string, at::Tensor> of;
  std::map<std::string, int> num_deposits;
  std::vector<std::function<void()>> deferred;
  bool is_full = false;
};

struct Slots : ::testing::Test {
  Slots() {
    a.set_sharded(random_tensor({3, 2}, 1).requires_grad_(), {});
    b.set_sharded(random_tensor({2}, 2).requires_grad_(), {});
  }
  ~Slots() override {
    for (Parameter* parameter : {&a, &b}) parameter->set_sink(nullptr);
  }
  at::Tensor loss() const { return (a.compute().square() + a.compute() * b.compute()).sum(); }
  at::Tensor gradient_of_a() const { return (2 * a.unsharded() + b.unsharded()).detach(); }

  Sums sums;
  Parameter a{"a", {.shape = {3, 2}}};
  Parameter b{"b", {.shape = {2}}};
};

// ---- levels ----

TEST_F(Slots, UnshardedAndComputeDefaultToSharded) {
  EXPECT_TRUE(a.unsharded().is_same(a.sharded()) && a.compute().is_same(a.sharded()));
  const at::Tensor copy = a.sharded().detach().to(at::kFloat).requires_grad_();
  a.set_unsharded(copy, {{"dp", Replicate{}}});
  EXPECT_TRUE(a.compute().is_same(copy));
  EXPECT_FALSE(a.sharded().is_same(copy));
  EXPECT_TRUE(a.compute_layout()["dp"].is_replicate());
  EXPECT_TRUE(a.sharded_layout().empty());
  a.set_sharded(at::zeros({3, 2}), {{"dp", Invariant{}}});
  EXPECT_TRUE(a.unsharded().is_same(a.sharded())) << "new sharded memory is also the unsharded tensor";
}

TEST(Parameter, WithoutMemoryIsNamedWhenItIsUsed) {
  const Parameter parameter("blocks.3.weight", {.shape = {2}});
  EXPECT_THAT(message_of<InternalError>([&] { (void)parameter.compute(); }),
              HasSubstr("blocks.3.weight: used before it has memory"));
}

TEST_F(Slots, ADerivedTensorIsComputedOnceUntilTheParameterChanges) {
  int num_derivations = 0;
  a.set_derivation(
      [&](const at::Tensor& leaf) {
        ++num_derivations;
        EXPECT_TRUE(at::GradMode::is_enabled());
        return leaf * 5;
      },
      {{"tp", Partial{}}});
  EXPECT_EQ(num_derivations, 0);
  EXPECT_TRUE(a.is_derived());
  EXPECT_TRUE(a.compute_layout()["tp"].is_partial());
  const at::NoGradGuard no_grad;
  const at::Tensor derived = a.compute();
  EXPECT_TRUE(a.compute().is_same(derived));
  EXPECT_EQ(num_derivations, 1);
  EXPECT_TRUE(derived.is_leaf() && derived.requires_grad()) << "autograd stops there";
  EXPECT_TRUE(at::equal(derived, a.unsharded() * 5));
  a.sharded().zero_();
  EXPECT_TRUE(a.compute().is_same(derived)) << "nobody has said so";
  a.unsharded_changed();
  EXPECT_EQ(a.compute().abs().max().item<double>(), 0);
  EXPECT_EQ(num_derivations, 2);
}

TEST_F(Slots, DerivationsCompose) {
  a.set_derivation([](const at::Tensor& leaf) { return leaf + 1; }, {});
  EXPECT_TRUE(at::equal(a.compute(), a.unsharded() + 1));
  a.set_derivation([](const at::Tensor& derived) { return derived * 10; }, {});
  EXPECT_TRUE(at::equal(a.compute(), (a.unsharded() + 1) * 10));
  a.set_derivation({}, {});
  EXPECT_TRUE(a.compute().is_same(a.unsharded()));
  EXPECT_FALSE(a.is_derived());
}

// ---- accumulation without a sink: as in autograd ----

TEST_F(Slots, WithoutASinkGradientsAccumulateInGrad) {
  const at::Tensor summand = at::ones({3, 2}, at::kDouble);
  a.accumulate_grad(summand);
  a.accumulate_grad([](at::Tensor& sum, bool is_empty) {
    EXPECT_TRUE(is_empty);
    sum.fill_(2);
  });
  bool is_done = false;
  a.accumulate_grad_later([&] { is_done = true; });
  EXPECT_TRUE(is_done) << "at once";
  loss().backward();
  EXPECT_TRUE(is_close(a.sharded().grad(), gradient_of_a() + 3));
  EXPECT_EQ(summand.max().item<double>(), 1) << "a summand is not kept";
}

TEST_F(Slots, WithoutASinkGradientsGoThroughTheDerivation) {
  a.set_derivation([](const at::Tensor& leaf) { return leaf.square().sum(1); }, {});
  a.accumulate_grad(at::full({3}, 2, at::kDouble));
  a.accumulate_grad(at::full({3}, 3, at::kFloat));
  EXPECT_TRUE(is_close(a.unsharded().grad(), (2 * 5 * a.unsharded()).detach()));
}

// ---- with one ----

TEST_F(Slots, ASinkGetsEachSummandOnceAndGradStaysEmpty) {
  for (Parameter* parameter : {&a, &b}) parameter->set_sink(&sums);
  loss().backward();
  EXPECT_EQ(sums.num_deposits["a"], 1) << "two uses, one deposit of what autograd has added up";
  EXPECT_TRUE(is_close(sums.of["a"], gradient_of_a()));
  EXPECT_TRUE(is_close(sums.of["b"], a.sharded().detach().sum(0)));
  EXPECT_FALSE(a.sharded().grad().defined() || b.sharded().grad().defined());
  loss().backward();
  EXPECT_TRUE(is_close(sums.of["a"], 2 * gradient_of_a()));
  a.accumulate_grad(at::ones({3, 2}, at::kBFloat16));
  a.accumulate_grad([](at::Tensor& sum, bool is_empty) {
    EXPECT_FALSE(is_empty);
    sum.add_(1);
  });
  EXPECT_TRUE(is_close(sums.of["a"], 2 * gradient_of_a() + 2));
  EXPECT_EQ(sums.num_deposits["a"], 4);
}

TEST_F(Slots, ASinkDecidesWhenWorkRuns) {
  a.set_sink(&sums);
  a.accumulate_grad_later([this] { a.accumulate_grad(at::ones({3, 2})); });
  EXPECT_EQ(sums.num_deposits["a"], 0);
  ASSERT_EQ(sums.deferred.size(), 1U);
  sums.deferred[0]();
  EXPECT_TRUE(at::equal(sums.of["a"], at::ones({3, 2}, at::kDouble)));
}

TEST_F(Slots, AutogradsGradientsOfADerivedTensorAreAccumulatedToo) {
  a.set_derivation([](const at::Tensor& leaf) { return leaf.square().sum(1); }, {});
  a.set_sink(&sums);
  (a.compute() * at::arange(3)).sum().backward();
  a.accumulate_grad(at::ones({3}));
  const at::Tensor of_compute = at::arange(3, at::kDouble) + 1;
  EXPECT_TRUE(is_close(sums.of["a"], of_compute)) << "of compute(), in its shape";
  EXPECT_TRUE(is_close(a.unsharded_gradient(sums.of["a"]), (2 * a.unsharded() * of_compute.unsqueeze(1)).detach()));
  EXPECT_FALSE(a.unsharded().grad().defined());
  const at::NoGradGuard no_grad;
  a.sharded().mul_(2);
  a.unsharded_changed();
  EXPECT_TRUE(is_close(a.unsharded_gradient(sums.of["a"]), (2 * a.unsharded() * of_compute.unsqueeze(1)).detach()));
}

TEST_F(Slots, TheUnshardedGradientHasTheUnshardedDtype) {
  a.set_unsharded(a.sharded().detach().to(at::kBFloat16).requires_grad_(), {});
  EXPECT_EQ(a.unsharded_gradient(at::ones({3, 2})).scalar_type(), at::kBFloat16);
  a.set_derivation([](const at::Tensor& leaf) { return leaf.to(at::kFloat) * 3; }, {});
  const at::Tensor gradient = a.unsharded_gradient(at::ones({3, 2}, at::kDouble));
  EXPECT_EQ(gradient.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(gradient, at::full({3, 2}, 3, at::kBFloat16)));
}

TEST_F(Slots, FrozenParametersAreNotAccumulated) {
  b.set_requires_grad(false);
  for (Parameter* parameter : {&a, &b}) parameter->set_sink(&sums);
  loss().backward();
  EXPECT_EQ(sums.num_deposits["a"], 1);
  EXPECT_FALSE(sums.num_deposits.contains("b"));
}

TEST_F(Slots, GradAccumulatesNothing) {
  for (Parameter* parameter : {&a, &b}) parameter->set_sink(&sums);
  torch::autograd::grad({loss()}, {a.sharded()});
  EXPECT_TRUE(sums.num_deposits.empty());
}

TEST_F(Slots, GradientsHaveOneOwner) {
  a.set_sink(&sums);
  Sums other;
  EXPECT_THAT(message_of<UsageError>([&] { a.set_sink(&other); }), HasSubstr("a: its gradient hook is taken"));
  loss().backward();
  EXPECT_EQ(sums.num_deposits["a"], 1) << "the first has them still";
  a.set_sink(nullptr);
  loss().backward();
  EXPECT_EQ(sums.num_deposits["a"], 1);
  EXPECT_TRUE(a.sharded().grad().defined()) << "autograd has them again";
  EXPECT_NO_THROW(a.set_sink(&other));
}

/// A user's tensor outlives its slot.
TEST(Parameter, LeavesNoHookBehind) {
  const at::Tensor tensor = at::ones({2}).requires_grad_();
  Sums sums;
  {
    Parameter parameter("a", {.shape = {2}});
    parameter.set_sharded(tensor, {});
    parameter.set_sink(&sums);
  }
  tensor.sum().backward();
  EXPECT_TRUE(tensor.grad().defined());
}

TEST_F(Slots, WhatASinkThrowsReachesTheCallerOfBackward) {
  a.set_sink(&sums);
  sums.is_full = true;
  EXPECT_THROW(loss().backward(), NumericsError);
}

TEST_F(Slots, ANewUnshardedTensorTakesTheHook) {
  a.set_sink(&sums);
  const at::Tensor before = a.unsharded();
  a.set_unsharded(at::ones({3, 2}, at::kDouble).requires_grad_(), {});
  loss().backward();
  EXPECT_TRUE(is_close(sums.of["a"], gradient_of_a()));
  before.sum().backward();
  EXPECT_TRUE(before.grad().defined());
  EXPECT_EQ(sums.num_deposits["a"], 1);
}

}  // namespace
}  // namespace caravan::testing::parameter_test
