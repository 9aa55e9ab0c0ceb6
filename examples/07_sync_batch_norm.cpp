/// A convolutional net of torch::nn whose batch norm counts the rows of all ranks, on threads of this process: ranks
/// with different numbers of rows have the outputs, gradients and running statistics of one process.
///   build/release/examples/example_07_sync_batch_norm

#include <cstdio>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "caravan/caravan.h"

using namespace caravan;

struct Net : torch::nn::Module {
  torch::nn::Conv2d conv{register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)))};
  torch::nn::BatchNorm2d norm{register_module("norm", torch::nn::BatchNorm2d(4))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(4, 3))};

  at::Tensor forward(const at::Tensor& images, const Mesh& mesh) {
    return out(sync_batch_norm(conv(images), norm, mesh["dp"]).relu().mean({2, 3}));
  }
};

constexpr int64_t kRows = 10;

/// Bright squares in a corner, which is the class.
std::pair<at::Tensor, at::Tensor> images() {
  const at::Tensor x = at::arange(kRows * 64, at::kFloat).mul(0.37).sin().view({kRows, 1, 8, 8}) * 0.1;
  const at::Tensor classes = at::arange(kRows, at::kLong).remainder(3);
  for (int64_t i = 0; i < kRows; ++i) x[i][0].narrow(0, i % 3 * 3, 2).narrow(1, i % 3 * 3, 2).add_(1);
  return {x, classes};
}

/// Three steps of SGD; the last loss of all ranks, on rank 0.
double train(const std::shared_ptr<Communicator>& world) {
  const Mesh mesh = Mesh::create(world, {{"dp", world->size()}});
  const auto net = std::make_shared<Net>();
  {
    const at::NoGradGuard no_grad;
    int64_t seed = 0;
    for (at::Tensor& p : net->parameters())
      p.copy_(at::arange(p.numel(), at::kFloat).add(++seed).sin().view(p.sizes()));
  }
  ModuleAdapter model(
      net, [net, &mesh](const Tensors& inputs) { return Tensors{net->forward(inputs[0], mesh)}; }, mesh);
  Ddp ddp(model, mesh);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1));
  const auto [x, y] = images();
  const int64_t first = world->rank() == 0 ? 0 : 7, count = world->size() == 1 ? kRows : world->rank() == 0 ? 7 : 3;
  double last = 0;
  for (int step = 0; step < 3; ++step) {
    ddp.begin_step();
    const at::Tensor scores = model(x.narrow(0, first, count), {});
    const at::Tensor loss = at::cross_entropy_loss(scores, y.narrow(0, first, count), {}, at::Reduction::Sum) / kRows;
    loss.backward();
    ddp.finish_step();
    optimizer.step();
    optimizer.zero_grad();
    const at::Tensor all = loss.detach().clone();
    all_reduce_async(*world, all, all, ReduceOp::sum).wait();
    last = all.item<double>();
  }
  return last;
}

int main() {
  double losses[2] = {0, 0};
  for (const int ranks : {1, 2}) {
    run_thread_ranks(ranks, [&](const std::shared_ptr<Communicator>& world) {
      const double loss = train(world);
      if (world->rank() == 0) losses[ranks - 1] = loss;
    });
  }
  std::printf("loss on 1 rank %.7f, on 2 ranks %.7f\n", losses[0], losses[1]);
  return std::abs(losses[0] - losses[1]) < 1e-5 ? 0 : 1;
}
