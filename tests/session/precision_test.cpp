// Batch norm and autocast in lower precision: what is fp32, and that ranks compute as one process does.
#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "caravan/base/error.h"
#include "caravan/session/autocast.h"
#include "caravan/session/parallelize.h"
#include "caravan/techniques/data/sync_batch_norm.h"
#include "tests/data/support.h"
#include "tests/formats/pieces.h"
#include "tests/needs.h"

namespace caravan::testing::precision_test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 24;

at::Tensor inputs() { return at::arange(kRows * 3, at::kFloat).mul(0.37).sin().view({kRows, 3}); }
at::Tensor targets() { return inputs().sum(1, /*keepdim=*/true).sin(); }
at::Tensor mean_of(const at::Tensor& output, const at::Tensor& y) {
  return (output.to(at::kFloat) - y).square().mean();
}

/// Two layers with batch norm in between, over all ranks if it has an axis.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::optional<MeshAxis> axis = std::nullopt, bool casts = false, bool autocasts = false)
      : axis(std::move(axis)), casts(casts), autocasts(autocasts) {
    const at::NoGradGuard no_grad;
    double shift = 0;
    for (at::Tensor& p : parameters()) {
      p.add_(at::arange(p.numel(), at::kFloat).add(shift += 0.7).sin().mul(0.3).view(p.sizes()) - p);
    }
    norm->weight.fill_(1.1);
  }
  at::Tensor forward(const at::Tensor& x) {
    std::optional<Autocast> autocast;
    if (autocasts) autocast.emplace();
    const at::Tensor inner = in(casts ? x.to(at::kBFloat16) : x);
    seen = inner.scalar_type();
    const at::Tensor normed = axis ? sync_batch_norm(inner, norm, *axis) : norm(inner);
    seen_norm = normed.scalar_type();
    return out(normed.tanh());
  }
  torch::nn::Linear in{register_module("in", torch::nn::Linear(3, 8))};
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(8))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(8, 1))};
  std::optional<MeshAxis> axis;
  bool casts, autocasts;
  at::ScalarType seen = at::kFloat, seen_norm = at::kFloat;
};
TORCH_MODULE(Net);

struct Ended {
  std::vector<double> losses;
  at::Tensor mean, variance;
};

/// Three steps on ranks of dp.
Ended train(int ranks, const std::vector<Technique>& techniques, bool casts, bool autocasts, bool over_ranks = true) {
  Ended ended;
  on_ranks({{"dp", ranks}}, [&](const Mesh& mesh) {
    Net net(over_ranks ? std::optional(mesh["dp"]) : std::nullopt, casts, autocasts);
    ParallelModel model(net, mesh, techniques, {.average = true});
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.2));
    std::vector<double> losses;
    for (int step = 0; step < 3; ++step) {
      losses.push_back(model.step(rows_of(inputs(), mesh), rows_of(targets(), mesh), mean_of));
      optimizer.step();
    }
    EXPECT_EQ(net->seen, casts || autocasts ? at::kBFloat16 : at::kFloat);
    for (const at::Tensor& parameter : model.parameters()) EXPECT_EQ(parameter.scalar_type(), at::kFloat) << "at rest";
    EXPECT_EQ(net->norm->running_mean.scalar_type(), at::kFloat);
    if (mesh.rank() == 0) ended = {losses, net->norm->running_mean.clone(), net->norm->running_var.clone()};
  });
  return ended;
}

void expect_near(const Ended& got, const Ended& want, double tolerance) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (size_t i = 0; i < want.losses.size(); ++i) EXPECT_NEAR(got.losses[i] / want.losses[i], 1, tolerance) << i;
  EXPECT_LE((got.mean - want.mean).abs().max().item<double>(), tolerance);
  EXPECT_LE((got.variance - want.variance).abs().max().item<double>(), tolerance);
}

constexpr double kExact = 2e-5;   // sums in another order
constexpr double kHalved = 0.02;  // 8 bits of mantissa

TEST(Precision, BatchNormOverRanksUnderMixedPrecision) {
  needs({"ddp", "zero3"});
  const Ended exact = train(1, {}, false, false);
  expect_near(train(1, {}, false, false, /*over_ranks=*/false), exact, kExact);
  expect_near(train(2, {}, false, false), exact, kExact);
  for (const Technique& technique : std::vector<Technique>{ddp(), fsdp()}) {
    expect_near(train(2, {mixed_precision(), technique}, true, false), exact, kHalved);
  }
}

/// Its weights would be bf16 and its statistics fp32, which torch refuses; the documents say what to use instead.
TEST(Precision, BatchNormOfTorchUnderMixedPrecision) {
  needs({"ddp"});
  EXPECT_THROW(train(1, {mixed_precision()}, true, false, /*over_ranks=*/false), std::exception);
  expect_near(train(1, {mixed_precision()}, true, false), train(1, {}, false, false), kHalved);
}

/// The weights of the second step are not those that autocast has kept from the first.
TEST(Precision, AutocastOverRanks) {
  needs({"ddp", "zero3"});
  const Ended exact = train(1, {}, false, false);
  const Ended alone = train(1, {}, false, true);
  expect_near(alone, exact, kHalved);
  for (const Technique& technique : std::vector<Technique>{ddp(), fsdp()})
    expect_near(train(2, {technique}, false, true), alone, kHalved);
  EXPECT_NE(alone.losses[0], exact.losses[0]) << "in bf16";
  EXPECT_LT(alone.losses[2], alone.losses[0]);
}

TEST(Precision, AutocastEndsWithItsScope) {
  const at::Tensor x = at::ones({2, 2});
  at::Tensor weight = at::ones({2, 2}).requires_grad_();
  {
    const Autocast autocast;
    EXPECT_EQ(x.mm(weight).scalar_type(), at::kBFloat16);
    {
      const Autocast inner(at::kHalf);
      EXPECT_EQ(x.mm(weight).scalar_type(), at::kHalf);
    }
    EXPECT_EQ(x.mm(weight.detach()).scalar_type(), at::kBFloat16);
    EXPECT_EQ(x.softmax(0).scalar_type(), at::kFloat);
  }
  EXPECT_EQ(x.mm(weight).scalar_type(), at::kFloat);
  weight.set_data(at::full({2, 2}, 3.0F));
  const Autocast autocast;
  EXPECT_EQ(x.mm(weight)[0][0].item<double>(), 6) << "no copy of the old weight";
  EXPECT_THAT(message_of<UsageError>([] { const Autocast other(at::kFloat); }), HasSubstr("is not a dtype of lower"));
}

}  // namespace
}  // namespace caravan::testing::precision_test
