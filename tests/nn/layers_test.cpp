#include <cmath>
#include <limits>

#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/nn/attention/rope.h"
#include "caravan/nn/norm.h"
#include "caravan/nn/ops.h"
#include "caravan/nn/product/product.h"
#include "tests/nn/compare.h"
#include "tests/nn/tiny.h"
#include "tests/ranks/rank_case.h"

namespace caravan::layers_test {
namespace {

using testing::compare;
using testing::distance;
using testing::normal;
using testing::Slots;

at::Tensor gelu_of(const at::Tensor& x) { return activated(Activation::gelu_tanh, x, {}, ""); }
at::Tensor swiglu_of(const at::Tensor& gate, const at::Tensor& up) { return gated(Activation::silu, gate, up, {}, ""); }

class Elementwise : public ::testing::TestWithParam<int64_t> {};

TEST_P(Elementwise, tanhGeluIsAtens) {
  compare([](const Tensors& in) { return gelu_of(in[0]); }, [](const Tensors& in) { return at::gelu(in[0], "tanh"); },
          {3 * normal({GetParam()}, 5)});
}

TEST_P(Elementwise, swigluIsSiluTimesUp) {
  compare([](const Tensors& in) { return swiglu_of(in[0], in[1]); },
          [](const Tensors& in) { return at::silu(in[0]) * in[1]; },
          {3 * normal({GetParam()}, 5), normal({GetParam()}, 6)});
}

INSTANTIATE_TEST_SUITE_P(, Elementwise, ::testing::Values(1, 7, 16, 33, 40001));

TEST(ElementwiseEdges, farOutTheyAreZeroOrTheIdentity) {
  const at::Tensor x = at::tensor({-1e30, -200.0, -20.0, 20.0, 200.0, 1e12}, at::kFloat);
  EXPECT_TRUE(gelu_of(x).allclose(at::gelu(x, "tanh"), 1e-6, 1e-8));
  EXPECT_TRUE(swiglu_of(x, x.sign()).allclose(at::silu(x) * x.sign(), 1e-6, 1e-6));
  const float inf = std::numeric_limits<float>::infinity();
  const at::Tensor far = at::tensor({-inf, -3e38F, -1e15F, -1e11F, -12.0F, 12.0F, 1e15F, 3e38F, inf});
  const at::Tensor is_positive = (far > 0).to(at::kFloat);
  at::Tensor leaf = far.clone().requires_grad_();
  const at::Tensor y = gelu_of(leaf);
  y.sum().backward();
  EXPECT_TRUE(leaf.grad().allclose(is_positive, 1e-6, 1e-6)) << leaf.grad();
  EXPECT_TRUE(y.allclose(far.clamp_min(0), 1e-6, 1e-6)) << y;
  const at::Tensor finite = far.narrow(0, 0, far.numel() - 1);  // libtorch has no slope of silu(inf) either
  at::Tensor gate = finite.clone().requires_grad_(), up = at::ones_like(gate).requires_grad_();
  const at::Tensor gated = swiglu_of(gate, up);
  gated.sum().backward();
  // At -12 and 12 sigmoid is 6e-6 from 0 and 1.
  EXPECT_TRUE(gated.allclose(finite.clamp_min(0), 1e-3, 1e-3)) << gated;
  EXPECT_TRUE(up.grad().allclose(finite.clamp_min(0), 1e-3, 1e-3)) << up.grad();
  EXPECT_TRUE(gate.grad().allclose((finite > 0).to(at::kFloat), 1e-3, 1e-3)) << gate.grad();
  const at::Tensor nan = at::full({3}, std::nan(""));
  EXPECT_TRUE(gelu_of(nan).isnan().all().item<bool>());
}

/// What backward needs is kept only where there is one.
TEST(ElementwiseEdges, geluIsTheSameWithoutAGradient) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    const at::Tensor x = (3 * normal({41}, 5)).to(type);
    const at::Tensor leaf = x.clone().requires_grad_();
    const at::Tensor y = gelu_of(leaf);
    EXPECT_TRUE(gelu_of(x).equal(y));
    EXPECT_FALSE(gelu_of(x).requires_grad());
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(gelu_of(leaf).equal(y));
  }
}

TEST(ElementwiseEdges, inputsNeedNotBeContiguous) {
  const at::Tensor x = normal({5, 9}, 1).t();
  EXPECT_LT(distance(gelu_of(x), at::gelu(x, "tanh")), 1e-6);
  EXPECT_LT(distance(swiglu_of(x, x.contiguous()), at::silu(x) * x), 1e-6);
  EXPECT_THROW(swiglu_of(x, x.t()), ShapeError);
}

/// Pairs (i, i + half) as complex numbers, rotated by e^(i angle). positions: [sequence] or [batch, sequence].
at::Tensor turned(const at::Tensor& x, double theta, const at::Tensor& positions) {
  const int64_t half = x.size(3) / 2;
  const at::Tensor position = positions.to(at::kDouble).unsqueeze(-1).unsqueeze(-1);
  const at::Tensor angle = position * at::pow(theta, -at::arange(half, at::kDouble) / half);
  const at::Tensor a = x.narrow(3, 0, half);
  const at::Tensor b = x.narrow(3, half, half);
  return at::cat({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()}, 3);
}

at::Tensor rope_at(const at::Tensor& x, RopeTable& table, const at::Tensor& positions) {
  return rope(x, table.angles(positions, x.size(1), x), {}, "");
}

TEST(Rope, turnsPairsByTheirPosition) {
  const at::Tensor later = at::arange(11, 16, at::kLong);
  const at::Tensor packed = at::tensor({0, 1, 2, 0, 1, 3, 12, 4, 7, 0}, at::kLong).view({2, 5});
  for (const int64_t width : {2, 6, 64}) {
    for (const at::Tensor& positions : {at::Tensor(), later, packed}) {
      RopeTable table(width, 500);
      const at::Tensor x = normal({2, 5, 3, width}, 9).to(at::kDouble).requires_grad_(true);
      const at::Tensor y = normal({2, 5, 3, width}, 9).to(at::kDouble).requires_grad_(true);
      const at::Tensor ours = rope_at(x, table, positions);
      const at::Tensor reference = turned(y, 500, positions.defined() ? positions : at::arange(5, at::kLong));
      EXPECT_LT(distance(ours, reference), 2e-6);  // the angles, up to 16, are fp32 products by design
      const at::Tensor outer = normal({2, 5, 3, width}, 10).to(at::kDouble);
      ours.backward(outer);
      reference.backward(outer);
      EXPECT_LT(distance(x.grad(), y.grad()), 2e-6);
    }
  }
}

TEST(Rope, aLaterPositionIsIndependentOfHowItIsReached) {
  RopeTable whole(6, 100);
  RopeTable stepwise(6, 100);
  const at::Tensor x = normal({1, 9, 2, 6}, 3);
  const at::Tensor all = rope_at(x, whole, {});
  for (int64_t t = 0; t < 9; ++t) {
    EXPECT_TRUE(rope_at(x.narrow(1, t, 1), stepwise, at::tensor({t}, at::kLong)).equal(all.narrow(1, t, 1))) << t;
  }
  EXPECT_THROW(rope_at(x, whole, at::arange(-1, 8, at::kLong)), DataError);
  EXPECT_THROW(rope_at(x, whole, at::arange(4, at::kLong)), ShapeError);
}

TEST(OwnOps, refuseUnsupportedInputs) {
  EXPECT_THROW(gelu_of(at::ones({4}, at::kInt)), UsageError);
  Slots slots;
  Parameter& four = slots.of(at::ones({4}));
  Parameter& five = slots.of(at::ones({5}));
  EXPECT_THROW(rms_norm(at::ones({2, 4}), five, 1e-5), ShapeError);
  EXPECT_THROW(rms_norm(at::ones({2, 4}, at::kBFloat16), four, 1e-5), ShapeError);
  EXPECT_THROW(layer_norm(at::ones({2, 4}), five, five, 1e-5), ShapeError);
  EXPECT_THROW(linear(at::ones({2, 4}), slots.of(at::ones({3, 5}))), ShapeError);
}

}  // namespace
}  // namespace caravan::layers_test
