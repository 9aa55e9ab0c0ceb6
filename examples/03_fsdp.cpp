/// FSDP of a module of your own in units, with clipping, bf16 and a learning-rate scheduler, in a loop of your own:
/// parameters, gradients and optimizer state are sharded; a unit is gathered while it computes.
///   caravan run build/release/examples/example_03_fsdp --ranks 2

#include <cstdio>

#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>

#include "caravan/caravan.h"

using namespace caravan;

struct BlockImpl : torch::nn::Module {
  torch::nn::Linear up{register_module("up", torch::nn::Linear(32, 128))};
  torch::nn::Linear down{register_module("down", torch::nn::Linear(128, 32))};
  at::Tensor forward(const at::Tensor& x) { return x + down(up(x).tanh()); }
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  torch::nn::Linear in{register_module("in", torch::nn::Linear(2, 32))};
  std::vector<Block> blocks{register_module("block0", Block()), register_module("block1", Block())};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(32, 1))};
};
TORCH_MODULE(Net);

std::pair<at::Tensor, at::Tensor> batch(int64_t step) {
  const at::Tensor i = at::arange(step * 240, (step + 1) * 240, at::kDouble);
  const at::Tensor x = at::stack({(i * 0.7548777).frac() * 4 - 2, (i * 0.5698403).frac() * 4 - 2}, 1).to(at::kFloat);
  return {x, x.square().sum(1, /*keepdim=*/true).lt(1).to(at::kFloat)};
}

void train() {
  Session session;
  Net net;
  const auto units =
      in_units(net, {unit("in", {net->in.ptr()},
                          [in = net->in](const at::Tensor& x) mutable {
                            return in(x.to(at::kBFloat16));  // weights are in bf16 there
                          }),
                     unit("blocks.0", net->blocks[0]), unit("blocks.1", net->blocks[1]), unit("out", net->out)});
  auto model = parallelize(units, session, {mixed_precision(), fsdp({.prefetch = 2}), recompute({{"blocks.*"}})},
                           {.average = true});
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.005));
  torch::optim::StepLR scheduler(optimizer, /*step_size=*/50, /*gamma=*/0.5);
  for (int64_t step = 1; step <= 150; ++step) {
    const auto [x, y] = batch(step);
    const at::Tensor output = model(session.rows(x));
    const at::Tensor loss = at::binary_cross_entropy_with_logits(output.to(at::kFloat), session.rows(y));
    loss.backward();  // its end reduces gradients to shards
    const double norm = model.clip_grad_norm(1.0);
    optimizer.step();
    scheduler.step();
    if (step % 50 != 0) continue;
    const double mean = session.sum(loss.item<double>()) / session.size();
    if (session.is_main()) std::printf("step %ld: loss %.6f norm %.3f\n", step, mean, norm);
  }
}

int main() { return run_program(train); }
