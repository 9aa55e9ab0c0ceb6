/// An optimizer of your own that needs whole matrices, Muon, and says so: under techniques that shard them it gets
/// whole ones, each on one rank, and update_whole() moves them there and back. Losses are the same under all.
///   caravan run build/release/examples/example_07_muon zero3 --ranks 2    # or ddp, zero1, zero2

#include <cstdio>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "caravan/caravan.h"

using namespace caravan;

/// The orthogonal matrix that is nearest to a gradient, by Newton-Schulz iterations (Jordan et al., 2024).
at::Tensor orthogonal(at::Tensor x) {
  const bool is_tall = x.size(0) > x.size(1);
  if (is_tall) x = x.t();
  x = x / (x.norm() + 1e-7);
  for (int i = 0; i < 5; ++i) {
    const at::Tensor square = x.mm(x.t());
    x = 3.4445 * x + (-4.7750 * square + 2.0315 * square.mm(square)).mm(x);
  }
  return is_tall ? x.t() : x;
}

std::pair<at::Tensor, at::Tensor> batch(int64_t step) {
  const at::Tensor i = at::arange(step * 240, (step + 1) * 240, at::kDouble);
  const at::Tensor x = at::stack({(i * 0.7548777).frac() * 4 - 2, (i * 0.5698403).frac() * 4 - 2}, 1).to(at::kFloat);
  return {x, x.square().sum(1, /*keepdim=*/true).lt(1).to(at::kFloat)};
}

void train(const std::string& technique) {
  Session session;
  torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::Tanh(), torch::nn::Linear(64, 64), torch::nn::Tanh(),
                            torch::nn::Linear(64, 1));
  auto model = parallelize(net, session, {Setting("data_parallel", technique)}, {.average = true});
  const std::vector<at::Tensor> parameters = model.whole_parameters();
  for (int64_t step = 1; step <= 100; ++step) {
    const auto [x, y] = batch(step);
    const double loss =
        model.step(session.rows(x), session.rows(y), [](const at::Tensor& out, const at::Tensor& is_in) {
          return at::binary_cross_entropy_with_logits(out, is_in);
        });
    model.update_whole([&] {
      const at::NoGradGuard no_grad;
      for (at::Tensor parameter : parameters) {
        parameter.sub_(parameter.dim() == 2 ? 0.02 * orthogonal(parameter.grad()) : 0.1 * parameter.grad());
      }
    });
    if (session.is_main() && step % 50 == 0) std::printf("step %ld: loss %.6f\n", step, loss);
  }
}

int main(int argc, char** argv) {
  return run_program([&] { train(argc > 1 ? argv[1] : "ddp"); });
}
