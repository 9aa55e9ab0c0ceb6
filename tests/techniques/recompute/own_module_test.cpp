#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "caravan/engine/engine.h"
#include "caravan/module/adapter.h"
#include "caravan/redistribute/redistribute.h"
#include "caravan/techniques/data/ddp.h"
#include "caravan/techniques/recompute/recompute.h"
#include "caravan/techniques/technique_body.h"
#include "tests/redistribute/denote.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::own_module_test {
namespace {

/// A user's own torch::nn::Module: batch norm changes buffers in forward, dropout draws from torch's own generator.
struct Net : torch::nn::Module {
  torch::nn::Sequential features{nullptr};
  torch::nn::Linear head{nullptr};
  Net() {
    features = register_module(
        "features",
        torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3)), torch::nn::BatchNorm2d(4),
                              torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true)), torch::nn::Dropout(0.3)));
    head = register_module("head", torch::nn::Linear(4 * 4 * 4, 3));
  }
};

/// As two units, or as one function.
std::unique_ptr<ModuleAdapter> adapt(const std::shared_ptr<Net>& net, bool has_units, const Mesh& mesh) {
  const auto features = [net](const Tensors& x) { return Tensors{net->features->forward(x[0]).flatten(1)}; };
  const auto head = [net](const Tensors& x) { return Tensors{net->head(x[0])}; };
  if (!has_units) {
    return std::make_unique<ModuleAdapter>(
        net, [=](const Tensors& x) { return head(features(x)); }, mesh);
  }
  std::vector<ModuleAdapter::Unit> units{{.name = "features", .modules = {net->features.ptr()}, .forward = features},
                                         {.name = "top", .modules = {net->head.ptr()}, .forward = head}};
  return std::make_unique<ModuleAdapter>(net, std::move(units), mesh);
}

struct Found {
  std::vector<at::Tensor> gradients, buffers;
  at::Tensor drawn;  ///< from torch's generator after the step
};

/// Two steps of two micro-batches; both forwards of a step come before the backwards, as in a pipeline.
Found train(const Setting& choice, bool has_units) {
  Found found;
  on_mesh({{"dp", 1}}, [&](const Mesh& mesh) {
    const auto net = std::make_shared<Net>();
    const at::NoGradGuard no_grad;
    uint64_t seed = 0;
    for (at::Tensor& weight : net->parameters()) weight.copy_(0.3 * random_tensor(weight.sizes(), ++seed));
    const at::AutoGradMode grad(true);
    const auto model = adapt(net, has_units, mesh);
    Strategy strategy = ddp(*model, mesh);
    add_around(choice, strategy, *model);
    Engine engine(*model, mesh, strategy);
    at::manual_seed(7);
    for (int step = 0; step < 2; ++step) {
      engine.begin_step(2);
      std::vector<at::Tensor> losses;
      for (int micro = 0; micro < 2; ++micro) {
        const at::Tensor x = random_tensor({6, 2, 6, 6}, 50 + 2 * step + micro).to(at::kFloat);
        losses.push_back(model->run({x}, {.step = step, .micro_batch = micro})[0].square().sum());
      }
      for (const at::Tensor& loss : losses) backward(loss, strategy.loss_layout);
      engine.finish_step();
    }
    for (const at::Tensor& weight : net->parameters()) found.gradients.push_back(weight.grad().clone());
    for (const at::Tensor& buffer : net->buffers()) found.buffers.push_back(buffer.clone());
    found.drawn = at::rand({4});
  });
  return found;
}

void expect_same_bits(const Found& got, const Found& want) {
  ASSERT_EQ(got.gradients.size(), want.gradients.size());
  for (size_t i = 0; i < want.gradients.size(); ++i) {
    EXPECT_TRUE(at::equal(got.gradients[i], want.gradients[i])) << "gradient " << i;
  }
  ASSERT_EQ(got.buffers.size(), 3U);
  for (size_t i = 0; i < want.buffers.size(); ++i) {
    EXPECT_TRUE(at::equal(got.buffers[i], want.buffers[i])) << "buffer " << i;
  }
  EXPECT_EQ(got.buffers[2].item<int64_t>(), 4) << "batches that batch norm has counted";
  EXPECT_TRUE(at::equal(got.drawn, want.drawn)) << "the generator goes on as if nothing had been drawn twice";
}

TEST(RecomputeOwnModule, StatisticsAreUpdatedOnceAndDropoutDrawsTheSame) {
  for (const bool has_units : {true, false}) {
    SCOPED_TRACE(has_units ? "two units" : "one function");
    expect_same_bits(train(recompute_of("full"), has_units), train(recompute_of("none"), has_units));
  }
  expect_same_bits(train(recompute_of(std::vector<std::string>{"feat*"}), true), train(recompute_of("none"), true));
}

}  // namespace
}  // namespace caravan::testing::own_module_test
