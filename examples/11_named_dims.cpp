/// A transformer of torch::nn under data x tensor parallelism with ZeRO, by names of dims: rules say which axis cuts
/// which name.
///   caravan run build/release/examples/example_11_named_dims 2 --ranks 4      (2 ranks for each copy)

#include <cstdio>
#include <cstdlib>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/optim/adamw.h>

#include "caravan/caravan.h"

using namespace caravan;
namespace nn = torch::nn;

struct NetImpl : nn::Module {
  nn::Embedding embedding{register_module("embedding", nn::Embedding(32, 24))};
  nn::TransformerEncoderLayer block{register_module(
      "block", nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(24, 4).dim_feedforward(96).dropout(0)))};
  nn::Linear head{register_module("head", nn::Linear(24, 32))};
  at::Tensor forward(const at::Tensor& ids) { return head(block(embedding(ids).transpose(0, 1)).transpose(0, 1)); }
};
TORCH_MODULE(Net);

void train(int tp) {
  Session session({.axes = {{"dp", 0}, {"tp", tp}}});  // dp: the ranks that are left
  const GlobalContext context(session.mesh());
  Net net;
  std::vector<DimNames> names = standard_names(*net);  // of nn::TransformerEncoderLayer
  names.push_back({"embedding.weight", "vocab embed"});
  names.push_back({"head.weight", "vocab embed"});
  names.push_back({"head.bias", "vocab"});
  // Attention by heads, the MLP and the vocabulary over tp; what is left of each parameter rests in parts over dp.
  const DimRules rules{"heads -> tp", "ff -> tp", "vocab -> tp", "embed -> dp"};
  distribute_module(*net, named_layouts(*net, names, rules, session.mesh(), standard_extents(*net)), context);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.005));
  for (int64_t step = 1; step <= 60; ++step) {
    const at::Tensor numbers = at::arange(step, step + 16 * 9).view({16, 9}).mul(7).remainder(32);
    const Layout rows{{"dp", Shard{0}}};
    const at::Tensor ids = distribute(numbers.slice(1, 0, 8).contiguous(), rows, context);
    const at::Tensor next = distribute(numbers.slice(1, 1, 9).contiguous(), rows, context);
    optimizer.zero_grad();
    const at::Tensor loss = at::cross_entropy_loss(net(ids).reshape({-1, 32}), next.reshape({-1}));
    loss.backward();
    optimizer.step();
    const double value = loss.item<double>();
    if (session.is_main() && step % 20 == 0) std::printf("step %ld: loss %.6f\n", step, value);
  }
}

int main(int argc, char** argv) {
  return run_program([&] { train(argc > 1 ? std::atoi(argv[1]) : 1); });
}
