#include "caravan/module/gradients.h"

#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "caravan/base/error.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing {
namespace {

using ::testing::HasSubstr;

struct Deposits final : GradientSink {
  std::vector<std::pair<std::string, at::Tensor>> made;
  void deposit(Parameter& parameter, const at::Tensor& gradient) override {
    made.emplace_back(parameter.name(), gradient.clone());
  }
};

Parameter& with_value(Parameter& parameter, uint64_t seed) {
  parameter.set_rest(random_tensor(parameter.global_shape(), seed).requires_grad_(), {});
  parameter.set_compute(parameter.rest());
  return parameter;
}

struct Gradients : ::testing::Test {
  Parameter a{"a", {.shape = {3, 2}}};
  Parameter b{"b", {.shape = {2}}};
  Deposits sink;
  Gradients() {
    with_value(a, 1);
    with_value(b, 2);
  }
  at::Tensor loss() const { return (a.compute().square() + a.compute() * b.compute()).sum(); }
};

TEST_F(Gradients, AreDepositedOncePerBackwardAndFreed) {
  const GradientDispatcher dispatcher({&a, &b}, sink);
  loss().backward();
  ASSERT_EQ(sink.made.size(), 2U);
  const at::Tensor want_a = 2 * a.rest().detach() + b.rest().detach();  // two uses, one deposit
  for (const auto& [name, gradient] : sink.made) {
    EXPECT_TRUE(is_close(gradient, name == "a" ? want_a : a.rest().detach().sum(0)));
  }
  EXPECT_FALSE(a.rest().grad().defined() || b.rest().grad().defined());
  loss().backward();
  EXPECT_EQ(sink.made.size(), 4U);
  EXPECT_TRUE(at::equal(sink.made[0].second, sink.made[2].second));  // nothing was left to add to
}

TEST_F(Gradients, OfAComputeCopyAreThoseOfTheCopy) {
  a.set_compute(a.rest().detach().to(at::kFloat).requires_grad_());
  b.set_compute(b.rest().detach().to(at::kFloat).requires_grad_());
  const GradientDispatcher dispatcher({&a, &b}, sink);
  loss().backward();
  ASSERT_EQ(sink.made.size(), 2U);
  EXPECT_EQ(sink.made[0].second.scalar_type(), at::kFloat);
}

TEST_F(Gradients, OfADerivedComputeTensorAreThoseAtRest) {
  a.set_compute(a.rest() * 5);
  const GradientDispatcher dispatcher({&a}, sink);
  a.compute().sum().backward();
  ASSERT_EQ(sink.made.size(), 1U);
  EXPECT_TRUE(at::equal(sink.made[0].second, at::full({3, 2}, 5, at::kDouble)));
}

TEST_F(Gradients, OfAFrozenParameterAreNotAsked) {
  b.set_requires_grad(false);
  const GradientDispatcher dispatcher({&a, &b}, sink);
  loss().backward();
  ASSERT_EQ(sink.made.size(), 1U);
  EXPECT_EQ(sink.made[0].first, "a");
}

TEST_F(Gradients, AreNotDepositedByGrad) {
  const GradientDispatcher dispatcher({&a, &b}, sink);
  torch::autograd::grad({loss()}, {a.rest()});
  EXPECT_TRUE(sink.made.empty());
}

TEST_F(Gradients, HaveOneOwner) {
  {
    const GradientDispatcher dispatcher({&a}, sink);
    EXPECT_THAT(message_of<UsageError>([&] {
                  const GradientDispatcher second({&b, &a}, sink);
                }),
                HasSubstr("a: its gradient hook is taken"));
  }
  // A refused dispatcher leaves no hook behind, and neither does one that is gone.
  loss().backward();
  EXPECT_TRUE(sink.made.empty());
  EXPECT_TRUE(a.rest().grad().defined() && b.rest().grad().defined());
}

TEST_F(Gradients, WhatASinkThrowsReachesTheCallerOfBackward) {
  struct Full final : GradientSink {
    void deposit(Parameter& parameter, const at::Tensor&) override {
      throw NumericsError({.op = "sink", .subject = parameter.name(), .fact = "is full"});
    }
  } full;
  const GradientDispatcher dispatcher({&a}, full);
  EXPECT_THROW(loss().backward(), NumericsError);
}

}  // namespace
}  // namespace caravan::testing
