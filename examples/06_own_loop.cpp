/// A program that stops and resumes: it loads the newest checkpoint, on any number of ranks, and Ctrl-C saves one.
///   caravan run build/release/examples/example_06_own_loop runs/circle 200 --ranks 2
/// Without `caravan run` it is one rank. The losses do not depend on the number of ranks.

#include <cstdio>
#include <cstdlib>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "caravan/caravan.h"

using namespace caravan;

constexpr int64_t kRows = 240;  // of a step, over all ranks

std::pair<at::Tensor, at::Tensor> batch(int64_t step) {
  const at::Tensor i = at::arange(step * kRows, (step + 1) * kRows, at::kDouble);
  const at::Tensor x = at::stack({(i * 0.7548777).frac() * 4 - 2, (i * 0.5698403).frac() * 4 - 2}, 1).to(at::kFloat);
  return {x, x.square().sum(1, /*keepdim=*/true).lt(1).to(at::kFloat)};
}

void train(const std::string& run, int64_t steps) {
  Session session;
  torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
  auto model = parallelize(net, session, {fsdp()});
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.01));
  model.attach(optimizer);
  Progress progress = model.load(run);  // the newest checkpoint, or step 0
  if (session.is_main()) std::printf("from step %ld on %d ranks\n", progress.step, session.size());
  while (progress.step < steps) {
    const auto [x, y] = batch(progress.step);
    // A sum over the rows of this rank, divided by those of all: gradients are summed over ranks, also uneven ones.
    const double loss =
        model.step(session.rows(x), session.rows(y), [](const at::Tensor& out, const at::Tensor& is_in) {
          return at::binary_cross_entropy_with_logits(out, is_in, {}, {}, at::Reduction::Sum) / kRows;
        });
    optimizer.step();
    ++progress.step;
    progress.counters["rows"] += kRows;
    if (session.is_main() && progress.step % 50 == 0) std::printf("step %ld: loss %.6f\n", progress.step, loss);
    if (model.save_if_due(run, progress, {.steps = 100, .last_step = steps}).stop) return;
  }
}

int main(int argc, char** argv) {
  return run_program([&] { train(argc > 1 ? argv[1] : "runs/circle", argc > 2 ? std::atol(argv[2]) : 200); });
}
