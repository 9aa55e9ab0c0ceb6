#include "caravan/nn/norm.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "caravan/base/error.h"
#include "caravan/base/trace/kernel_log.h"
#include "caravan/models/block.h"
#include "caravan/nn/mlp.h"
#include "tests/nn/compare.h"
#include "tests/nn/tiny.h"

namespace caravan::norm_test {
namespace {

using testing::expect_same_on_threads;
using testing::kTolerances;
using testing::normal;
using testing::Slots;

constexpr double kEpsilon = 0.05;  // rows of one element, and short ones, would be divided by nearly 0

/// Leaves of a norm, of one dtype.
struct Leaves {
  at::Tensor x, branch, weight, bias;

  Leaves(int64_t rows, int64_t width, at::ScalarType type) {
    const auto leaf = [&](const at::Tensor& value) { return value.to(type).requires_grad_(true); };
    x = leaf(normal({rows, 2, width}, 1) + 0.5);
    branch = leaf(normal({rows, 2, width}, 2));
    weight = leaf(normal({width}, 3));
    bias = leaf(normal({width}, 4));
  }
  Leaves as(at::ScalarType type) const {
    Leaves copy(*this);
    for (at::Tensor* leaf : {&copy.x, &copy.branch, &copy.weight, &copy.bias}) {
      *leaf = leaf->detach().to(type, /*non_blocking=*/false, /*copy=*/true).requires_grad_(true);
    }
    return copy;
  }
};

at::Tensor formula(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (!bias.defined()) return x * at::rsqrt(x.square().mean(-1, true) + kEpsilon) * weight;
  const at::Tensor centred = x - x.mean(-1, true);
  return centred * at::rsqrt(centred.square().mean(-1, true) + kEpsilon) * weight + bias;
}

at::Tensor plain_norm(Slots& slots, const at::Tensor& x, const Leaves& of, bool has_bias) {
  Parameter& weight = slots.of(of.weight);
  return has_bias ? layer_norm(x, weight, slots.of(of.bias), kEpsilon) : rms_norm(x, weight, kEpsilon);
}

NormedSum fused_norm(Slots& slots, const at::Tensor& x, const at::Tensor& branch, const Leaves& of, bool has_bias) {
  Parameter& weight = slots.of(of.weight);
  return add_norm(x, branch, weight, has_bias ? &slots.of(of.bias) : nullptr, kEpsilon);
}

/// |a - b| <= tolerance * max(|b|, scale): some gradients are 0, such as those of a row of one element.
void expect_near(const at::Tensor& a, const at::Tensor& b, double tolerance, const at::Tensor& scale,
                 const std::string& what) {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  const auto size = [](const at::Tensor& x) { return x.to(at::kDouble).norm().item<double>(); };
  EXPECT_LE(size(a.to(at::kDouble) - b), tolerance * std::max(size(b), size(scale))) << what;
}

class Norms : public ::testing::TestWithParam<std::tuple<bool, int64_t, int64_t>> {
 protected:
  bool has_bias_ = std::get<0>(GetParam());
  int64_t rows_ = std::get<1>(GetParam());
  int64_t width_ = std::get<2>(GetParam());
};

/// kTolerances are for a few roundings; rows and sums of them have some more.
TEST_P(Norms, areTheirFormula) {
  for (const auto& [type, tolerance] : kTolerances) {
    const std::string what = c10::toString(type);
    Slots slots;
    Leaves ours(rows_, width_, type);
    const Leaves theirs = ours.as(at::kDouble);
    const at::Tensor y = plain_norm(slots, ours.x, ours, has_bias_);
    const at::Tensor want = formula(theirs.x, theirs.weight, has_bias_ ? theirs.bias : at::Tensor());
    EXPECT_EQ(y.scalar_type(), type);
    const at::Tensor outer = normal({rows_, 2, width_}, 5).to(type);
    expect_near(y, want, 2 * tolerance, outer, what);
    y.backward(outer);
    want.backward(outer.to(at::kDouble));
    expect_near(ours.x.grad(), theirs.x.grad(), 4 * tolerance, outer, what + " x");
    expect_near(ours.weight.grad(), theirs.weight.grad(), 4 * tolerance, outer, what + " weight");
    if (has_bias_) expect_near(ours.bias.grad(), theirs.bias.grad(), 4 * tolerance, outer, what + " bias");
  }
}

TEST_P(Norms, ofSumsAreTheirFormula) {
  for (const auto& [type, tolerance] : kTolerances) {
    const std::string what = c10::toString(type);
    Slots slots;
    Leaves ours(rows_, width_, type);
    const Leaves theirs = ours.as(at::kDouble);
    const NormedSum both = fused_norm(slots, ours.x, ours.branch, ours, has_bias_);
    const at::Tensor sum = theirs.x + theirs.branch;
    const at::Tensor want = formula(sum, theirs.weight, has_bias_ ? theirs.bias : at::Tensor());
    const at::Tensor outer = normal({rows_, 2, width_}, 5).to(type);
    const at::Tensor residual = normal({rows_, 2, width_}, 6).to(type);
    expect_near(both.sum, sum, tolerance, outer, what + " sum");
    expect_near(both.normed, want, 4 * tolerance, outer, what);
    torch::autograd::backward({both.sum, both.normed}, {residual, outer});
    torch::autograd::backward({sum, want}, {residual.to(at::kDouble), outer.to(at::kDouble)});
    expect_near(ours.x.grad(), theirs.x.grad(), 6 * tolerance, outer, what + " x");
    EXPECT_TRUE(ours.branch.grad().equal(ours.x.grad())) << what;
    expect_near(ours.weight.grad(), theirs.weight.grad(), 6 * tolerance, outer, what + " weight");
    if (has_bias_) expect_near(ours.bias.grad(), theirs.bias.grad(), 6 * tolerance, outer, what + " bias");
  }
}

/// Also where a gradient of one result is missing, and where no branch is added.
TEST_P(Norms, ofSumsAreBitForBitThoseAfterAnAddition) {
  for (const auto& [type, tolerance] : kTolerances) {
    for (const auto& [has_branch, uses_sum, uses_norm] :
         {std::tuple(true, true, true), {true, true, false}, {true, false, true}, {false, true, true}}) {
      Slots slots;
      Leaves fused(rows_, width_, type);
      Leaves apart = fused.as(type);
      const NormedSum both = fused_norm(slots, fused.x, has_branch ? fused.branch : at::Tensor(), fused, has_bias_);
      const at::Tensor sum = has_branch ? apart.x + apart.branch : apart.x * 1;
      const at::Tensor y = plain_norm(slots, sum, apart, has_bias_);
      EXPECT_TRUE(both.sum.equal(sum));
      EXPECT_TRUE(both.normed.equal(y));
      const at::Tensor outer = normal({rows_, 2, width_}, 5).to(type);
      const auto backward = [&](const at::Tensor& of_sum, const at::Tensor& of_norm) {
        Tensors roots;
        if (uses_sum) roots.push_back(of_sum);
        if (uses_norm) roots.push_back(of_norm);
        Tensors gradients(roots.size(), outer);
        torch::autograd::backward(roots, gradients);
      };
      backward(both.sum, both.normed);
      backward(sum, y);
      for (const auto& [a, b] : {std::pair(&fused.x, &apart.x),
                                 {&fused.branch, &apart.branch},
                                 {&fused.weight, &apart.weight},
                                 {&fused.bias, &apart.bias}}) {
        ASSERT_EQ(a->grad().defined(), b->grad().defined());
        if (!a->grad().defined()) continue;
        EXPECT_TRUE(a->grad().equal(b->grad())) << type;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Norms,
                         ::testing::Combine(::testing::Bool(), ::testing::Values(0, 1, 3, 700),
                                            ::testing::Values(1, 5, 33, 768)));

class NormsOfEither : public ::testing::TestWithParam<bool> {};

/// A sum of squares less the square of the sum would lose all digits.
TEST_P(NormsOfEither, keepTheirDigitsFarFromZero) {
  if (!GetParam()) return;  // RMSNorm has no mean
  Slots slots;
  Leaves of(40, 300, at::kFloat);
  const at::Tensor x = normal({40, 2, 300}, 1) + 4096;  // 0.0005 apart
  const at::Tensor want = formula(x.to(at::kDouble), of.weight.to(at::kDouble), of.bias.to(at::kDouble));
  expect_near(plain_norm(slots, x, of, true), want, 1e-3, want, "");
}

TEST_P(NormsOfEither, takeInputsThatAreNotContiguous) {
  Slots slots;
  const auto strided = [](const at::Tensor& x) { return x.transpose(0, 1).contiguous().transpose(0, 1); };
  Leaves a(5, 33, at::kFloat);
  Leaves b = a.as(at::kFloat);
  const NormedSum plain = fused_norm(slots, a.x, a.branch, a, GetParam());
  const NormedSum other = fused_norm(slots, strided(b.x), strided(b.branch), b, GetParam());
  EXPECT_TRUE(other.sum.equal(plain.sum));
  EXPECT_TRUE(other.normed.equal(plain.normed));
  EXPECT_TRUE(fused_norm(slots, strided(b.x), {}, b, GetParam()).normed.equal(plain_norm(slots, a.x, a, GetParam())));
  const at::Tensor outer = normal({5, 2, 33}, 5);
  torch::autograd::backward({plain.sum, plain.normed}, {outer * 3, outer});
  torch::autograd::backward({other.sum, other.normed}, {strided(outer * 3), strided(outer)});
  EXPECT_TRUE(b.x.grad().equal(a.x.grad()));
  EXPECT_TRUE(b.weight.grad().equal(a.weight.grad()));
}

/// x and branch get one tensor, which may be a gradient that somebody else holds.
TEST_P(NormsOfEither, leaveGradientsThatOthersHold) {
  Slots slots;
  Leaves of(3, 5, at::kFloat);
  const NormedSum both = fused_norm(slots, of.x, of.branch, of, GetParam());
  const at::Tensor of_sum = normal({3, 2, 5}, 5);
  const at::Tensor of_norm = normal({3, 2, 5}, 6);
  const at::Tensor sum_before = of_sum.clone();
  const at::Tensor norm_before = of_norm.clone();
  torch::autograd::backward({both.sum, both.normed}, {of_sum, of_norm}, /*retain_graph=*/true);
  const at::Tensor once = of.x.grad().clone();
  torch::autograd::backward({both.sum, both.normed}, {of_sum, of_norm}, /*retain_graph=*/true);
  torch::autograd::backward({both.sum}, {of_sum});
  EXPECT_TRUE(of_sum.equal(sum_before));
  EXPECT_TRUE(of_norm.equal(norm_before));
  EXPECT_TRUE(of.x.grad().equal(once + once + of_sum));
  of.x.grad().zero_();
  EXPECT_TRUE(of.branch.grad().equal(once + once + of_sum));
}

TEST_P(NormsOfEither, haveTheSameBitsForAnyNumberOfThreads) {
  expect_same_on_threads([] {
    Slots slots;
    Leaves of(701, 33, at::kFloat);
    const NormedSum both = fused_norm(slots, of.x, of.branch, of, GetParam());
    torch::autograd::backward({both.sum, both.normed}, {at::ones_like(both.sum), normal({701, 2, 33}, 5)});
    return Tensors{both.normed, of.x.grad(), of.weight.grad()};
  });
}

INSTANTIATE_TEST_SUITE_P(, NormsOfEither, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "layer_norm" : "rms_norm"); });

TEST(NormsOfSums, refuseOtherShapesAndDtypes) {
  Slots slots;
  Parameter& weight = slots.of(at::ones({4}));
  EXPECT_THROW(add_norm(at::ones({2, 4}), at::ones({4}), weight, nullptr, 1e-5), ShapeError);
  EXPECT_THROW(add_norm(at::ones({2, 4}), at::ones({2, 4}, at::kDouble), weight, nullptr, 1e-5), ShapeError);
  EXPECT_THROW(add_norm(at::ones({2, 5}), {}, weight, nullptr, 1e-5), ShapeError);
}

// ---- in a block ----

class NormLog final : public KernelLog {
 public:
  void add(KernelWork work) override { bytes[work.what] += work.bytes; }
  std::map<std::string, int64_t> bytes;
};

struct Trained {
  Tensors values;  ///< output, gradient of the input, gradients of parameters
  std::map<std::string, int64_t> bytes;
};

Trained train_block(NormKind norm, at::ScalarType type, const Around& around_norms) {
  ModelConfig config = testing::tiny_config(Architecture::gpt2());
  config.arch.norm = norm;
  Block block(config, 0, {});
  uint64_t seed = 10;
  for (Parameter* parameter : block.parameters()) {
    parameter->set_sharded(normal(parameter->global_shape(), ++seed).to(type).requires_grad_(true), {});
  }
  std::vector<Hook> hooks;
  for (const char* name : {"attention_norm", "mlp_norm"}) {
    if (around_norms) hooks.push_back(block.find(name).add_hook(around_norms));
  }
  const at::Tensor x = normal({2, 7, config.width}, 1).to(type).requires_grad_(true);
  NormLog log;
  const KernelLogScope scope(&log);
  const at::Tensor y = block.run({x}, {}).front();
  y.backward(normal({2, 7, config.width}, 2).to(type));
  Trained trained{{y, x.grad()}, log.bytes};
  for (Parameter* parameter : block.parameters()) trained.values.push_back(parameter->unsharded().grad());
  return trained;
}

void expect_same_with_hooks(NormKind kind, const std::string& norm) {
  const Around passes = [](Module&, Tensors inputs, const ForwardContext& context, const Next& next) {
    return next(std::move(inputs), context);
  };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Trained fused = train_block(kind, type, {});
    const Trained hooked = train_block(kind, type, passes);
    for (size_t i = 0; i < fused.values.size(); ++i) EXPECT_TRUE(fused.values[i].equal(hooked.values[i])) << type << i;
    // One of two sums is taken with its norm, and both gradients of sums: each reads a tensor more, the sum writes one.
    EXPECT_EQ(2 * fused.bytes.at(norm), 3 * hooked.bytes.at(norm));
    EXPECT_EQ(3 * fused.bytes.at(norm + " backward"), 4 * hooked.bytes.at(norm + " backward"));
  }
}

TEST(Block, hasTheSameBitsWhereHooksKeepSumsAndNormsApart) {
  expect_same_with_hooks(NormKind::layer, "layer_norm");
  expect_same_with_hooks(NormKind::rms, "rms_norm");
}

TEST(Block, takesWhatHooksMakeOfItsNorms) {
  const Around doubles = [](Module&, Tensors inputs, const ForwardContext& context, const Next& next) {
    Tensors outputs = next(std::move(inputs), context);
    outputs.front() = outputs.front() * 2;
    return outputs;
  };
  EXPECT_FALSE(train_block(NormKind::rms, at::kFloat, {})
                   .values[0]
                   .equal(train_block(NormKind::rms, at::kFloat, doubles).values[0]));
}

}  // namespace
}  // namespace caravan::norm_test
