/// Your own module, data and loop over any number of processes, with checkpoints that the next call resumes:
///   caravan run build/release/examples/example_06_own_loop runs/circle 200 --ranks 2
/// Without `caravan run` it is one rank. The losses do not depend on the number of ranks.

#include <cstdio>
#include <cstdlib>

#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "caravan/caravan.h"

using namespace caravan;

struct Net : torch::nn::Module {
  torch::nn::Linear in{register_module("in", torch::nn::Linear(2, 64))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(64, 1))};
  at::Tensor forward(const at::Tensor& x) { return out(in(x).tanh()); }
};

constexpr int64_t kBatch = 240;  // rows of a step, over all ranks

/// Points of the plane, other ones in each step, and 1 or 0 for inside or outside the unit circle.
std::pair<at::Tensor, at::Tensor> batch(int64_t step) {
  const at::Tensor i = at::arange(step * kBatch, (step + 1) * kBatch, at::kDouble);
  const at::Tensor x = at::stack({(i * 0.7548777).frac() * 4 - 2, (i * 0.5698403).frac() * 4 - 2}, 1).to(at::kFloat);
  return {x, x.square().sum(1, /*keepdim=*/true).lt(1).to(at::kFloat)};
}

void train(const std::string& folder, int64_t steps) {
  Session session;  // the first thing: processes, mesh, threads, seed
  const auto net = std::make_shared<Net>();
  const auto forward = [net](const Tensors& inputs) { return Tensors{net->forward(inputs[0])}; };
  ModuleAdapter model(net, forward, session.mesh());
  Ddp ddp(model, session.mesh());
  torch::optim::AdamW optimizer(ddp.parameters(), torch::optim::AdamWOptions(0.01));

  ModuleCheckpoint checkpoint(folder, ddp, &optimizer);
  Progress at = checkpoint.load();  // the newest one, or step 0
  if (session.is_main()) std::printf("from step %ld on %d ranks\n", at.step, session.size());
  while (at.step < steps) {
    const auto [x, y] = batch(at.step);
    const at::Tensor my_x = x.tensor_split(session.size())[session.rank()];
    const at::Tensor my_y = y.tensor_split(session.size())[session.rank()];
    optimizer.zero_grad();
    ddp.begin_step();
    const at::Tensor sum = at::binary_cross_entropy_with_logits(model(my_x, {}), my_y, {}, {}, at::Reduction::Sum);
    const at::Tensor loss = sum / kBatch;  // divided by the rows of all ranks: gradients are summed, not averaged
    loss.backward();
    ddp.finish_step();
    optimizer.step();
    ++at.step;
    at.counters["rows"] += kBatch;

    const at::Tensor all = loss.detach().clone();
    all_reduce_async(session.world(), all, all, ReduceOp::sum).wait();
    if (session.is_main() && at.step % 50 == 0) std::printf("step %ld: loss %.6f\n", at.step, all.item<double>());
    if (at.step % 100 == 0 || at.step == steps) checkpoint.save(at);
  }
}

int main(int argc, char** argv) {
  try {
    train(argc > 1 ? argv[1] : "runs/circle", argc > 2 ? std::atol(argv[2]) : 200);
  } catch (const Error& error) {  // says what to do; the exit code is that of its class
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
