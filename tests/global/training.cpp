#include "tests/global/training.h"

#include <mutex>

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

namespace caravan::testing {
namespace {

at::Tensor whole(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return (is_global(tensor) ? full(tensor.detach()) : tensor.detach()).clone();
}

std::shared_ptr<torch::nn::Module> made(const Program& program) {
  static std::mutex one_generator;  // of all rank threads
  const std::lock_guard lock(one_generator);
  at::manual_seed(7);
  auto net = program.make();
  net->to(program.type);
  return net;
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const Program& program, const torch::nn::Module& net) {
  if (program.optimizer == Program::Optimizer::adamw) {
    return std::make_unique<torch::optim::AdamW>(net.parameters(), torch::optim::AdamWOptions(1e-2).eps(1e-3));
  }
  return std::make_unique<torch::optim::SGD>(net.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
}

Trained run(const Program& program, torch::nn::Module& net, const std::vector<at::Tensor>& data) {
  const auto optimizer = optimizer_of(program, net);
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    const at::Tensor loss = program.loss(net, data);
    loss.backward();
    trained.losses.push_back(loss.item<double>());
    if (step == 0) {
      for (const at::Tensor& parameter : net.parameters()) trained.gradients.push_back(whole(parameter.grad()));
    }
    if (program.clip > 0) torch::nn::utils::clip_grad_norm_(net.parameters(), program.clip);
    optimizer->step();
  }
  for (const at::Tensor& parameter : net.parameters()) trained.parameters.push_back(whole(parameter));
  return trained;
}

void expect_same(const Trained& want, const Trained& got, const torch::nn::Module& net, double tolerance) {
  const auto names = net.named_parameters().keys();
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], 10 * tolerance * std::max(1.0, std::abs(want.losses[i])))
        << "loss of step " << i;
  }
  for (size_t i = 0; i < names.size(); ++i) {
    ASSERT_EQ(got.gradients[i].defined(), want.gradients[i].defined()) << names[i];
    if (want.gradients[i].defined()) {
      EXPECT_TRUE(is_close(got.gradients[i], want.gradients[i], tolerance)) << "gradient of " << names[i];
    }
    EXPECT_TRUE(is_close(got.parameters[i], want.parameters[i], 100 * tolerance)) << "parameter " << names[i];
  }
}

}  // namespace

Trained train_alone(const Program& program) { return run(program, *made(program), program.data); }

std::string expect_same_training(const Program& program, const Spread& spread, double tolerance) {
  const Trained alone = train_alone(program);
  std::string report;
  on_mesh(spread.axes, [&](const Mesh& mesh) {
    const GlobalContext context(mesh, spread.options);
    const auto net = made(program);
    distribute_module(*net, spread.parameters, context);
    std::vector<at::Tensor> data;
    for (size_t i = 0; i < program.data.size(); ++i) {
      data.push_back(distribute(program.data[i], i < spread.data.size() ? spread.data[i] : Layout(), context));
    }
    expect_same(alone, run(program, *net, data), *net, tolerance);
    if (mesh.rank() == 0) report = context.report();
  });
  return report;
}

}  // namespace caravan::testing
