/// Your own torch::nn::Module, trained by four ranks (threads of this process) that each see a quarter of the batch.
/// The loop is the one you know; the lines with (*) are new. At the end it is held against the same training on one
/// rank.

#include <fmt/format.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "caravan/base/runtime.h"
#include "caravan/comm/thread_ranks.h"
#include "caravan/module/adapter.h"
#include "caravan/parallel/ddp.h"

using namespace caravan;

struct Net : torch::nn::Module {
  torch::nn::Linear in{register_module("in", torch::nn::Linear(2, 64))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(64, 1))};
  at::Tensor forward(const at::Tensor& x) { return out(in(x).tanh()); }
};

constexpr int kSteps = 200;
constexpr int64_t kBatch = 240;

/// Points of the plane, and whether each lies inside the unit circle: 1 or 0.
std::pair<at::Tensor, at::Tensor> points() {
  const at::Tensor i = at::arange(kBatch, at::kFloat);
  const at::Tensor x = at::stack({(i * 0.7548777).frac() * 4 - 2, (i * 0.5698403).frac() * 4 - 2}, 1);
  return {x, x.square().sum(1, /*keepdim=*/true).lt(1).to(at::kFloat)};
}

/// The loss of every step, added up over the ranks.
at::Tensor train(int ranks) {
  at::manual_seed(1);
  std::vector<std::shared_ptr<Net>> nets;  // one for each rank, and each with other weights
  for (int rank = 0; rank < ranks; ++rank) nets.push_back(std::make_shared<Net>());
  const at::Tensor losses = at::zeros({ranks, kSteps});

  run_thread_ranks(ranks, [&](const std::shared_ptr<Communicator>& world) {
    const Mesh mesh = Mesh::create(world, {{"dp", ranks}});
    const auto net = nets[mesh.rank()];
    const auto forward = [net](const Tensors& inputs) { return Tensors{net->forward(inputs[0])}; };
    ModuleAdapter model(net, forward, mesh);  // (*)
    Ddp ddp(model, mesh["dp"]);               // (*) all ranks now have the weights of rank 0
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));

    const auto [x, y] = points();
    const at::Tensor my_x = x.chunk(ranks)[mesh.rank()];
    const at::Tensor my_y = y.chunk(ranks)[mesh.rank()];
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      ddp.begin_step();  // (*)
      const at::Tensor sum = at::binary_cross_entropy_with_logits(model(my_x, {}), my_y, {}, {}, at::Reduction::Sum);
      const at::Tensor loss = sum / kBatch;  // by the rows of all ranks: gradients are added up, not averaged
      ddp.arm();                             // (*) this backward is the step's last: gradients travel while it runs
      loss.backward();
      ddp.finish_step();  // (*)
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
  const double apart = ((four - one) / one).abs().max().item<double>();  // fp32 sums in another order, 200 steps long
  fmt::print("furthest apart: {:.1e} of the loss\n", apart);
  return apart < 1e-4 && one[kSteps - 1].item<double>() < 0.1 ? 0 : 1;
}
