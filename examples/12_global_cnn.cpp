/// A convolution net over rows of the batch and channels: batch norm sees the whole batch, whatever the layout.
///   caravan run build/release/examples/example_12_global_cnn 2 --ranks 4

#include <cstdio>
#include <cstdlib>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "caravan/caravan.h"

using namespace caravan;
namespace nn = torch::nn;

struct NetImpl : nn::Module {
  nn::Conv2d first{register_module("first", nn::Conv2d(nn::Conv2dOptions(1, 8, 3).padding(1).bias(false)))};
  nn::BatchNorm2d norm{register_module("norm", nn::BatchNorm2d(8))};
  nn::Conv2d second{register_module("second", nn::Conv2d(nn::Conv2dOptions(8, 8, 3).padding(1)))};
  nn::Linear head{register_module("head", nn::Linear(8, 2))};
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = at::relu(second(at::relu(norm(first(x)))));
    return head(at::adaptive_avg_pool2d(y, {1, 1}).flatten(1));
  }
};
TORCH_MODULE(Net);

/// Stripes, upright or lying.
std::pair<at::Tensor, at::Tensor> batch(int64_t step) {
  const at::Tensor kind = at::arange(32).add(step).remainder(2);
  const at::Tensor wave = (at::arange(8, at::kFloat) * 1.5 + 0.1 * static_cast<double>(step)).sin();
  const at::Tensor upright = wave.view({1, 1, 1, 8}).expand({32, 1, 8, 8});
  return {at::where(kind.view({32, 1, 1, 1}).eq(1), upright, upright.transpose(2, 3)).contiguous(), kind};
}

void train(int tp) {
  Session session({.axes = {{"dp", 0}, {"tp", tp}}});
  const GlobalContext context(session.mesh());
  Net net;
  // Channels between the convolutions over tp: made by the first, summed over by the second.
  distribute_module(*net,
                    {{"first.weight", {{"tp", Shard{0}}}},
                     {"norm.*", {{"tp", Shard{0}}}},
                     {"norm.num_batches_tracked", {}},
                     {"second.weight", {{"tp", Shard{1}}}}},
                    context);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int64_t step = 1; step <= 40; ++step) {
    const auto [x, y] = batch(step);
    optimizer.zero_grad();
    const at::Tensor loss = at::cross_entropy_loss(net(distribute(x, {{"dp", Shard{0}}}, context)),
                                                   distribute(y, {{"dp", Shard{0}}}, context));
    loss.backward();
    optimizer.step();
    const double value = loss.item<double>();
    if (session.is_main() && step % 20 == 0) std::printf("step %ld: loss %.6f\n", step, value);
  }
  const std::string whole = context.report();  // ops that ran on whole tensors: none
  if (session.is_main() && !whole.empty()) throw NumericsError({"example", "report", whole});
}

int main(int argc, char** argv) {
  return run_program([&] { train(argc > 1 ? std::atoi(argv[1]) : 1); });
}
