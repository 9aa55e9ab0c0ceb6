/// A module of your own as a pipeline: each rank holds a stage, and stages work on different micro-batches at once.
///   caravan run build/release/examples/example_04_pipeline zb-h1 2 --ranks 4     # 2 stages, 2 replicas of each (DDP)

#include <cstdio>
#include <cstdlib>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "caravan/caravan.h"

using namespace caravan;

std::pair<at::Tensor, at::Tensor> batch(int64_t step) {
  const at::Tensor i = at::arange(step * 240, (step + 1) * 240, at::kDouble);
  const at::Tensor x = at::stack({(i * 0.7548777).frac() * 4 - 2, (i * 0.5698403).frac() * 4 - 2}, 1).to(at::kFloat);
  return {x, x.square().sum(1, /*keepdim=*/true).lt(1).to(at::kFloat)};
}

void train(const std::string& schedule, int stages) {
  Session session({.pp = stages});
  torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::Tanh(), torch::nn::Linear(64, 64), torch::nn::Tanh(),
                            torch::nn::Linear(64, 1));  // a unit for each child
  auto model =
      parallelize(net, session, {pipeline({.schedule = schedule, .micro_batches = 4}), ddp()}, {.average = true});
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.01));  // of this rank's stage
  for (int64_t step = 1; step <= 100; ++step) {
    const auto [x, y] = batch(step);
    const double loss =
        model.step(session.rows(x), session.rows(y), [](const at::Tensor& out, const at::Tensor& is_in) {
          return at::binary_cross_entropy_with_logits(out, is_in);
        });
    optimizer.step();
    if (session.is_main() && step % 50 == 0) std::printf("step %ld: loss %.6f\n", step, loss);
  }
}

int main(int argc, char** argv) {
  return run_program([&] { train(argc > 1 ? argv[1] : "1f1b", argc > 2 ? std::atoi(argv[2]) : 1); });
}
