#include <cmath>

#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/nn/activation.h"
#include "caravan/nn/norm.h"
#include "caravan/nn/rope.h"
#include "tests/nn/compare.h"
#include "tests/nn/tiny.h"
#include "tests/ranks/rank_case.h"

namespace caravan {
namespace {

using testing::compare;
using testing::distance;
using testing::normal;

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

/// Pairs (i, i + half) as complex numbers, rotated by e^(i angle).
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
