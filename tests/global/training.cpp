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

double largest(const at::Tensor& tensor) { return tensor.numel() == 0 ? 0 : tensor.abs().max().item<double>(); }

/// The largest difference of `got` from `want`, of the largest element of `want` or, where that is smaller, of `least`.
double relative_error(const at::Tensor& got, const at::Tensor& want, double least) {
  const at::Tensor exact = want.to(at::kDouble);
  return largest(got.to(at::kDouble) - exact) / std::max(largest(exact), least);
}

void expect_same_fp32(const Trained& want, const Trained& got, const torch::nn::Module& net, double tolerance) {
  const auto names = net.named_parameters().keys();
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_LE(std::abs(got.losses[i] - want.losses[i]) / std::abs(want.losses[i]), tolerance) << "loss of step " << i;
  }
  // A gradient that is 0 but for rounding, as that of a bias of keys or before a norm, has nothing to be relative to.
  double least = 0;
  for (const at::Tensor& gradient : want.gradients) least = std::max(least, gradient.defined() ? largest(gradient) : 0);
  least *= 0.01;
  for (size_t i = 0; i < names.size(); ++i) {
    ASSERT_EQ(got.gradients[i].defined(), want.gradients[i].defined()) << names[i];
    if (want.gradients[i].defined()) {
      EXPECT_LE(relative_error(got.gradients[i], want.gradients[i], least), tolerance) << "gradient of " << names[i];
    }
    // A bias that begins at 0 is the sum of several gradients, and of their errors.
    EXPECT_LE(relative_error(got.parameters[i], want.parameters[i], 0), 2 * tolerance) << "parameter " << names[i];
  }
}

}  // namespace

std::shared_ptr<torch::nn::Module> made(const Program& program) {
  static std::mutex one_generator;  // of all rank threads
  const std::lock_guard lock(one_generator);
  at::manual_seed(7);
  auto net = program.make();
  net->to(program.type);
  return net;
}

Trained train_alone(const Program& program) { return run(program, *made(program), program.data); }

Program in_fp32(Program program) {
  program.type = at::kFloat;
  for (at::Tensor& each : program.data) {
    if (each.is_floating_point()) each = each.to(at::kFloat);
  }
  return program;
}

std::string expect_same_on(const Mesh& mesh, const Trained& alone, const Program& program, const Spread& spread,
                           double tolerance) {
  const GlobalContext context(mesh, spread.options);
  const auto net = made(program);
  distribute_module(*net, spread.parameters, context);
  std::vector<at::Tensor> data;
  for (size_t i = 0; i < program.data.size(); ++i) {
    data.push_back(distribute(program.data[i], i < spread.data.size() ? spread.data[i] : Layout(), context));
  }
  const Trained trained = run(program, *net, data);
  const auto expect = program.type == at::kFloat ? expect_same_fp32 : expect_same;
  expect(alone, trained, *net, tolerance);
  return context.report();
}

std::string expect_same_training(const Program& program, const Spread& spread, double tolerance) {
  const Trained alone = train_alone(program);
  std::string report;
  on_mesh(spread.axes, [&](const Mesh& mesh) {
    const std::string own = expect_same_on(mesh, alone, program, spread, tolerance);
    if (mesh.rank() == 0) report = own;
  });
  return report;
}

}  // namespace caravan::testing
