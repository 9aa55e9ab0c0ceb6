#include <atomic>
#include <cmath>
#include <thread>

#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/nn/activation.h"
#include "caravan/nn/norm.h"
#include "caravan/nn/product.h"
#include "caravan/nn/rope.h"
#include "tests/nn/tiny.h"
#include "tests/ranks/rank_case.h"

namespace caravan {
namespace {

using testing::distance;
using testing::normal;
using Op = std::function<at::Tensor(const Tensors&)>;

struct Tolerance {
  at::ScalarType type;
  double value;
};
/// One op: fp64 and fp32 to a few roundings; bf16 is rounded to 8 bits at the end.
constexpr Tolerance kTolerances[] = {{at::kDouble, 1e-14}, {at::kFloat, 4e-7}, {at::kBFloat16, 4e-3}};

/// Holds value and gradients of `ours` against `reference` in fp64 on the same (rounded) inputs; `sums`: how much
/// longer sums of products may be off.
void compare(const Op& ours, const Op& reference, const Tensors& inputs, double sums = 1) {
  for (const auto& [type, one] : kTolerances) {
    const double tolerance = one * sums;
    Tensors a;
    Tensors b;
    for (const at::Tensor& input : inputs) {
      a.push_back(input.to(type).detach().clone().requires_grad_(true));
      b.push_back(a.back().detach().to(at::kDouble).requires_grad_(true));
    }
    const at::Tensor x = ours(a);
    const at::Tensor y = reference(b);
    EXPECT_EQ(x.scalar_type(), type);
    ASSERT_EQ(x.sizes(), y.sizes());
    EXPECT_LT(distance(x, y), tolerance) << c10::toString(type);
    const at::Tensor outer = normal(x.sizes().vec(), 77).to(type);
    x.backward(outer);
    y.backward(outer.to(at::kDouble));
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_LT(distance(a[i].grad(), b[i].grad()), 2 * tolerance) << c10::toString(type) << " gradient " << i;
    }
  }
}

class Elementwise : public ::testing::TestWithParam<int64_t> {};

TEST_P(Elementwise, tanhGeluIsAtens) {
  compare([](const Tensors& in) { return tanh_gelu(in[0]); }, [](const Tensors& in) { return at::gelu(in[0], "tanh"); },
          {3 * normal({GetParam()}, 5)});
}

TEST_P(Elementwise, swigluIsSiluTimesUp) {
  compare([](const Tensors& in) { return swiglu(in[0], in[1]); },
          [](const Tensors& in) { return at::silu(in[0]) * in[1]; },
          {3 * normal({GetParam()}, 5), normal({GetParam()}, 6)});
}

INSTANTIATE_TEST_SUITE_P(, Elementwise, ::testing::Values(1, 7, 16, 33, 40001));

TEST(ElementwiseEdges, farOutTheyAreZeroOrTheIdentity) {
  const at::Tensor x = at::tensor({-1e30, -200.0, -20.0, 20.0, 200.0, 1e12}, at::kFloat);
  EXPECT_TRUE(tanh_gelu(x).allclose(at::gelu(x, "tanh"), 1e-6, 1e-8));
  EXPECT_TRUE(swiglu(x, x.sign()).allclose(at::silu(x) * x.sign(), 1e-6, 1e-6));
  const at::Tensor nan = at::full({3}, std::nan(""));
  EXPECT_TRUE(tanh_gelu(nan).isnan().all().item<bool>());
}

TEST(ElementwiseEdges, inputsNeedNotBeContiguous) {
  const at::Tensor x = normal({5, 9}, 1).t();
  EXPECT_LT(distance(tanh_gelu(x), at::gelu(x, "tanh")), 1e-6);
  EXPECT_LT(distance(swiglu(x, x.contiguous()), at::silu(x) * x), 1e-6);
  EXPECT_THROW(swiglu(x, x.t()), ShapeError);
}

class Norms : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

TEST_P(Norms, rmsNormIsItsFormula) {
  const auto [rows, width] = GetParam();
  compare([](const Tensors& in) { return rms_normalised(in[0], in[1], 1e-5); },
          [](const Tensors& in) { return in[0] * at::rsqrt(in[0].square().mean(-1, true) + 1e-5) * in[1]; },
          {normal({rows, 1, width}, 5) + 0.5, normal({width}, 6)});
}

INSTANTIATE_TEST_SUITE_P(, Norms, ::testing::Combine(::testing::Values(1, 3, 700), ::testing::Values(2, 16, 37, 2049)));

class Products : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {};

TEST_P(Products, areAtensWhoeverComputesThem) {
  const auto [rows, in, out] = GetParam();
  const Op reference = [](const Tensors& x) {
    return at::linear(x[0], x[1], x.size() > 2 ? std::optional(x[2]) : std::nullopt);
  };
  const Op ours = [](const Tensors& x) { return linear_product(x[0], x[1], x.size() > 2 ? x[2] : at::Tensor()); };
  const Tensors inputs{normal({rows, 3, in}, 1), normal({out, in}, 2), normal({out}, 3)};
  const auto roundings = static_cast<double>(std::max({rows, in, out}));
  compare(ours, reference, inputs, std::sqrt(roundings));
  compare(ours, reference, {inputs[0], inputs[1]}, std::sqrt(roundings));
  compare(ours, reference, {inputs[0].select(1, 0), inputs[1]}, std::sqrt(roundings));  // rows with gaps
  for (const bool transposed : {false, true}) {
    const at::Tensor a = transposed ? normal({in, rows}, 4).t() : normal({rows, in}, 4);
    const at::Tensor b = transposed ? normal({in, out}, 5).t() : normal({out, in}, 5);
    EXPECT_LT(distance(product(a, b), at::matmul(a.to(at::kDouble), b.t().to(at::kDouble))), 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(, Products,
                         ::testing::Combine(::testing::Values(1, 16, 67), ::testing::Values(1, 18, 64),
                                            ::testing::Values(1, 23, 128)));

/// Ranks that are threads compute at the same time, each its own shapes.
TEST(ProductsEdges, threadsDoNotDisturbEachOther) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([thread, &wrong] {
      for (int64_t i = 0; i < 40; ++i) {
        const at::Tensor a = normal({17 + i, 9 + thread}, 1);
        const at::Tensor b = normal({21 + thread, 9 + thread}, 2);
        if (distance(product(a, b), at::matmul(a.to(at::kDouble), b.t().to(at::kDouble))) > 1e-6) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(ProductsEdges, aFrozenWeightOrInputGetsNoGradient) {
  const at::Tensor x = normal({40, 6}, 1).requires_grad_(true);
  const at::Tensor weight = normal({5, 6}, 2).requires_grad_(true);
  linear_product(x, weight.detach(), normal({5}, 3)).sum().backward();
  EXPECT_LT(distance(x.grad(), weight.detach().sum(0).expand({40, 6})), 1e-6);
  linear_product(x.detach(), weight).sum().backward();
  EXPECT_LT(distance(weight.grad(), x.detach().sum(0).expand({5, 6})), 1e-6);
}

/// Pairs (i, i + half) as complex numbers, turned by e^(i angle).
at::Tensor turned(const at::Tensor& x, double theta, int64_t first) {
  const int64_t half = x.size(3) / 2;
  const at::Tensor position = at::arange(first, first + x.size(1), at::kDouble).view({-1, 1, 1});
  const at::Tensor angle = position * at::pow(theta, -at::arange(half, at::kDouble) / half);
  const at::Tensor a = x.narrow(3, 0, half);
  const at::Tensor b = x.narrow(3, half, half);
  return at::cat({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()}, 3);
}

TEST(Rope, turnsPairsByTheirPosition) {
  for (const int64_t width : {2, 6, 64}) {
    RopeTable table(width, 500);
    const at::Tensor x = normal({2, 5, 3, width}, 9).to(at::kDouble).requires_grad_(true);
    const at::Tensor y = normal({2, 5, 3, width}, 9).to(at::kDouble).requires_grad_(true);
    const at::Tensor ours = rope(x, table, 11);
    const at::Tensor reference = turned(y, 500, 11);
    EXPECT_LT(distance(ours, reference), 2e-6);  // the angles, up to 16, are fp32 products by design
    const at::Tensor outer = normal({2, 5, 3, width}, 10).to(at::kDouble);
    ours.backward(outer);
    reference.backward(outer);
    EXPECT_LT(distance(x.grad(), y.grad()), 2e-6);
  }
}

TEST(Rope, aLaterPositionIsTheSameHoweverItIsReached) {
  RopeTable whole(6, 100);
  RopeTable stepwise(6, 100);
  const at::Tensor x = normal({1, 9, 2, 6}, 3);
  const at::Tensor all = rope(x, whole, 0);
  for (int64_t t = 0; t < 9; ++t) EXPECT_TRUE(rope(x.narrow(1, t, 1), stepwise, t).equal(all.narrow(1, t, 1))) << t;
}

TEST(OwnOps, refuseWhatTheyHaveNoKernelFor) {
  const at::Tensor half = at::ones({4}, at::kHalf);
  EXPECT_THROW(tanh_gelu(half), UsageError);
  EXPECT_THROW(rms_normalised(at::ones({2, 4}), at::ones({5}), 1e-5), ShapeError);
  EXPECT_THROW(rms_normalised(at::ones({2, 4}, at::kBFloat16), at::ones({4}), 1e-5), ShapeError);
}

}  // namespace
}  // namespace caravan
