// Trains a user's module over any number of processes, with checkpoints that the next call resumes.
#include <caravan/caravan.h>
#include <cstdio>

#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

using namespace caravan;

struct Net : torch::nn::Module {
  torch::nn::Linear in{register_module("in", torch::nn::Linear(2, 64))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(64, 1))};
  at::Tensor forward(const at::Tensor& x) { return out(in(x).tanh()); }
};

constexpr int64_t kBatch = 240;  // rows of a step, over all ranks

/// The data of a step, on every rank: points of the plane, and whether each is inside the unit circle.
std::pair<at::Tensor, at::Tensor> batch(int64_t step) {
  const at::Tensor i = at::arange(step * kBatch, (step + 1) * kBatch, at::kDouble);
  const at::Tensor x = at::stack({(i * 0.7548777).frac() * 4 - 2, (i * 0.5698403).frac() * 4 - 2}, 1).to(at::kFloat);
  return {x, x.square().sum(1, /*keepdim=*/true).lt(1).to(at::kFloat)};
}

void train(int64_t steps) {
  Session session;
  const auto net = std::make_shared<Net>();
  ModuleAdapter model(
      net, [net](const Tensors& inputs) { return Tensors{net->forward(inputs[0])}; }, session.mesh());
  Ddp ddp(model, session.mesh());
  torch::optim::AdamW optimizer(ddp.parameters(), torch::optim::AdamWOptions(0.01));
  ModuleCheckpoint checkpoint("checkpoints", ddp, &optimizer);

  for (Progress at = checkpoint.load(); at.step < steps;) {
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

    const at::Tensor all = loss.detach().clone();
    all_reduce_async(session.world(), all, all, ReduceOp::sum).wait();
    if (session.is_main()) std::printf("step %ld: loss %.4f\n", at.step + 1, all.item<double>());
    if (++at.step % 100 == 0 || at.step == steps) checkpoint.save(at);
  }
}

int main(int argc, char** argv) {
  try {
    train(argc > 1 ? std::atol(argv[1]) : 200);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
