/// Tensor parallelism of a module that knows nothing of ranks: its parameters become global tensors, its forward, the
/// gradients and torch's optimizer run as they are.
///   caravan run build/release/examples/example_10_global_tensors --ranks 4
/// The losses do not depend on the number of ranks.

#include <cstdio>

#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "caravan/caravan.h"

using namespace caravan;

struct NetImpl : torch::nn::Module {
  torch::nn::Linear up{register_module("up", torch::nn::Linear(2, 64))};
  torch::nn::Linear down{register_module("down", torch::nn::Linear(64, 1))};
  at::Tensor forward(const at::Tensor& x) { return down(up(x).tanh()); }
};
TORCH_MODULE(Net);

/// Points of the plane, and 1 or 0 for inside or outside the unit circle; every rank makes all of them.
std::pair<at::Tensor, at::Tensor> batch(int64_t step) {
  const at::Tensor i = at::arange(step * 240, (step + 1) * 240, at::kDouble);
  const at::Tensor x = at::stack({(i * 0.7548777).frac() * 4 - 2, (i * 0.5698403).frac() * 4 - 2}, 1).to(at::kFloat);
  return {x, x.square().sum(1, /*keepdim=*/true).lt(1).to(at::kFloat)};
}

void train() {
  Session session({.axes = {{"tp", 0}}});  // one axis, of all ranks
  const GlobalContext context(session.mesh());
  Net net;
  // Each rank has 64 / n hidden units: rows of the first layer, columns of the second.
  distribute_module(*net, {{"up.*", {{"tp", Shard{0}}}}, {"down.weight", {{"tp", Shard{1}}}}}, context);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01));
  for (int64_t step = 1; step <= 100; ++step) {
    const auto [x, y] = batch(step);
    optimizer.zero_grad();
    const at::Tensor loss = at::binary_cross_entropy_with_logits(net(distribute(x, {}, context)), y);
    loss.backward();
    optimizer.step();
    const double value = loss.item<double>();  // of a global tensor: every rank calls it
    if (session.is_main() && step % 50 == 0) std::printf("step %ld: loss %.6f\n", step, value);
  }
}

int main() { return run_program(train); }
