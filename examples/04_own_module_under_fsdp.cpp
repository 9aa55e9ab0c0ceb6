/// Trains your own torch::nn::Module on four ranks (threads of this process) that share its parameters, gradients and
/// optimizer state: each rank keeps a quarter. The lines with (*) differ from a loop on one rank, with whose losses the
/// losses are compared.

#include <fmt/format.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "caravan/base/runtime.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/module/adapter.h"
#include "caravan/techniques/data/zero.h"

using namespace caravan;

constexpr int kSteps = 200;
constexpr int64_t kBatch = 240;

/// Each child is a unit: what is gathered, freed and reduced on its own.
torch::nn::Sequential make_net() {
  return torch::nn::Sequential(torch::nn::Linear(2, 64), torch::nn::Tanh(), torch::nn::Linear(64, 64),
                               torch::nn::Tanh(), torch::nn::Linear(64, 1));
}

/// Points in the plane, and 1 or 0 for inside or outside the unit circle.
std::pair<at::Tensor, at::Tensor> points() {
  const at::Tensor i = at::arange(kBatch, at::kFloat);
  const at::Tensor x = at::stack({(i * 0.7548777).frac() * 4 - 2, (i * 0.5698403).frac() * 4 - 2}, 1);
  return {x, x.square().sum(1, /*keepdim=*/true).lt(1).to(at::kFloat)};
}

/// The loss of every step, summed over the ranks.
at::Tensor train(int ranks) {
  at::manual_seed(1);
  std::vector<torch::nn::Sequential> nets;  // one per rank, each with different weights
  for (int rank = 0; rank < ranks; ++rank) nets.push_back(make_net());
  const at::Tensor losses = at::zeros({ranks, kSteps});

  run_thread_ranks(ranks, [&](const std::shared_ptr<Communicator>& world) {
    const Mesh mesh = Mesh::create(world, {{"dp", ranks}});
    ModuleAdapter model(nets[mesh.rank()].ptr(), mesh);  // (*)
    Fsdp fsdp(model, mesh);                              // (*) the weights of rank 0, a part on each rank
    torch::optim::AdamW optimizer(fsdp.parameters(), torch::optim::AdamWOptions(0.01));  // (*) of this rank's part

    const auto [x, y] = points();
    const at::Tensor my_x = x.chunk(ranks)[mesh.rank()];
    const at::Tensor my_y = y.chunk(ranks)[mesh.rank()];
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      fsdp.begin_step();  // (*)
      const at::Tensor sum = at::binary_cross_entropy_with_logits(model(my_x, {}), my_y, {}, {}, at::Reduction::Sum);
      const at::Tensor loss = sum / kBatch;  // divided by the rows of all ranks: gradients are summed, not averaged
      loss.backward();
      fsdp.finish_step();  // (*)
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
  const double apart =
      ((four - one) / one).abs().slice(0, 0, 20).max().item<double>();  // later AdamW magnifies rounding
  fmt::print("largest relative difference in 20 steps: {:.1e}\n", apart);
  return apart < 1e-4 && four[kSteps - 1].item<double>() < 0.1 ? 0 : 1;
}
