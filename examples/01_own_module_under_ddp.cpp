/// Trains your own torch::nn::Module on four ranks (threads of this process), each with a quarter of the batch. The
/// loop is the usual one; the lines with (*) are new. The losses are compared with the same training on one rank.

#include <fmt/format.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "caravan/base/runtime.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/module/adapter.h"
#include "caravan/techniques/data/ddp.h"

using namespace caravan;

struct Net : torch::nn::Module {
  torch::nn::Linear in{register_module("in", torch::nn::Linear(2, 64))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(64, 1))};
  at::Tensor forward(const at::Tensor& x) { return out(in(x).tanh()); }
};

constexpr int kSteps = 200;
constexpr int64_t kBatch = 240;

/// Points in the plane, and 1 or 0 for inside or outside the unit circle.
std::pair<at::Tensor, at::Tensor> points() {
  const at::Tensor i = at::arange(kBatch, at::kFloat);
  const at::Tensor x = at::stack({(i * 0.7548777).frac() * 4 - 2, (i * 0.5698403).frac() * 4 - 2}, 1);
  return {x, x.square().sum(1, /*keepdim=*/true).lt(1).to(at::kFloat)};
}

/// The loss of every step, summed over the ranks.
at::Tensor train(int ranks) {
  at::manual_seed(1);
  std::vector<std::shared_ptr<Net>> nets;  // one per rank, each with different weights
  for (int rank = 0; rank < ranks; ++rank) nets.push_back(std::make_shared<Net>());
  const at::Tensor losses = at::zeros({ranks, kSteps});

  run_thread_ranks(ranks, [&](const std::shared_ptr<Communicator>& world) {
    const Mesh mesh = Mesh::create(world, {{"dp", ranks}});
    const auto net = nets[mesh.rank()];
    const auto forward = [net](const Tensors& inputs) { return Tensors{net->forward(inputs[0])}; };
    ModuleAdapter model(net, forward, mesh);  // (*)
    Ddp ddp(model, mesh);                     // (*) all ranks now have the weights of rank 0
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));

    const auto [x, y] = points();
    const at::Tensor my_x = x.chunk(ranks)[mesh.rank()];
    const at::Tensor my_y = y.chunk(ranks)[mesh.rank()];
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      ddp.begin_step();  // (*)
      const at::Tensor sum = at::binary_cross_entropy_with_logits(model(my_x, {}), my_y, {}, {}, at::Reduction::Sum);
      const at::Tensor loss = sum / kBatch;  // divided by the rows of all ranks: gradients are summed, not averaged
      loss.backward();
      ddp.finish_step();  // (*) now .grad is the sum over the ranks
      optimizer.step();
      losses[mesh.rank()][step] = loss.detach();
    }
  });
  return losses.sum(0);
}

int main() {
  const Runtime runtime;
  const at::Tensor four = train(4);
  const at::Tensor one = train(1);
  for (const int step : {0, 10, 50, kSteps - 1}) {
    const double loss = one[step].item<double>();
    fmt::print("step {:3}: loss {:.6f} on 4 ranks, {:.6f} on 1\n", step, four[step].item<double>(), loss);
  }
  const double apart = ((four - one) / one).abs().max().item<double>();  // 200 steps of fp32 sums in another order
  fmt::print("largest relative difference: {:.1e}\n", apart);
  return apart < 1e-4 && one[kSteps - 1].item<double>() < 0.1 ? 0 : 1;
}
