/// Trains a module of your own under DDP: each rank has its rows of the batch, gradients are averaged.
///   caravan run build/release/examples/example_01_ddp --ranks 4
/// The losses do not depend on the number of ranks.

#include <cstdio>

#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "caravan/caravan.h"

using namespace caravan;

struct NetImpl : torch::nn::Module {
  torch::nn::Linear in{register_module("in", torch::nn::Linear(2, 64))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(64, 1))};
  at::Tensor forward(const at::Tensor& x) { return out(in(x).tanh()); }
};
TORCH_MODULE(Net);

/// Points of the plane, other ones in each step, and 1 or 0 for inside or outside the unit circle.
std::pair<at::Tensor, at::Tensor> batch(int64_t step) {
  const at::Tensor i = at::arange(step * 240, (step + 1) * 240, at::kDouble);
  const at::Tensor x = at::stack({(i * 0.7548777).frac() * 4 - 2, (i * 0.5698403).frac() * 4 - 2}, 1).to(at::kFloat);
  return {x, x.square().sum(1, /*keepdim=*/true).lt(1).to(at::kFloat)};
}

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return at::binary_cross_entropy_with_logits(output, target);  // the mean over the rows that it gets
}

void train() {
  Session session;  // the first thing: processes, mesh, threads, seed
  Net net;
  auto model = parallelize(net, session, {ddp()}, {.average = true});
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.01));
  for (int64_t step = 1; step <= 200; ++step) {
    const auto [x, y] = batch(step);
    const double loss = model.step(session.rows(x), session.rows(y), loss_of);
    optimizer.step();
    if (session.is_main() && step % 50 == 0) std::printf("step %ld: loss %.6f\n", step, loss);
  }
}

int main() { return run_program(train); }
