/// How to run a net of your own on hardware that is not there, and on this machine: what fits, how long a step takes,
/// which techniques are best, and the lines of code that choose them.
///   caravan run build/release/examples/example_09_plan --ranks 2

#include <cstdio>
#include <memory>

#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/adamw.h>

#include "caravan/caravan.h"

using namespace caravan;

constexpr int64_t kRows = 64, kPositions = 128, kWidth = 256;

struct BlockImpl : torch::nn::Module {
  torch::nn::Linear qkv, out, up, down;
  BlockImpl()
      : qkv(register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth))),
        out(register_module("out", torch::nn::Linear(kWidth, kWidth))),
        up(register_module("up", torch::nn::Linear(kWidth, 4 * kWidth))),
        down(register_module("down", torch::nn::Linear(4 * kWidth, kWidth))) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto heads = [&](const at::Tensor& y) { return y.view({y.size(0), y.size(1), 4, -1}).transpose(1, 2); };
    const auto parts = qkv(x).chunk(3, -1);
    const at::Tensor seen = at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]));
    const at::Tensor y = x + out(seen.transpose(1, 2).reshape(x.sizes()));
    return y + down(at::gelu(up(y)));
  }
};
TORCH_MODULE(Block);

void plan_it() {
  const Session session;
  const auto net = std::make_shared<torch::nn::Module>();
  std::vector<ModuleAdapter::Unit> units;
  for (int i = 0; i < 4; ++i) {
    const auto name = "blocks" + std::to_string(i);
    units.push_back(unit(name, net->register_module(name, std::make_shared<BlockImpl>())));
  }
  const Trainable trained = in_units(net, units);
  // The whole batch of a step; shapes are enough.
  const at::Tensor x = at::empty({kRows, kPositions, kWidth}, at::kMeta);
  const StepData step{x, at::empty_like(x), [](const at::Tensor& out, const at::Tensor& y) {
                        return (out - y).square().sum() / (kRows * kPositions * kWidth);
                      }};
  const Hardware cards = preset_hardware({.device = "rtx-4090", .per_host = 8});
  const ModulePlan rented = plan(trained, session, step, {.hardware = cards, .seconds = 2, .most_rows = 3});
  const ModulePlan here = plan(trained, session, step, {.seconds = 2, .most_rows = 3});
  if (session.is_main()) std::printf("%s\n%s", rented.to_string().c_str(), here.to_string().c_str());
  if (!rented.fits() || !here.fits()) throw std::runtime_error("a small net fits nowhere");
  // The plan of this machine is what parallelize() takes, if its axes are those of the session: dp alone.
  if (here.best.front().pp > 1 || here.best.front().tp > 1) return;
  auto model = parallelize(trained, session, here.best.front().techniques, here.best.front().options);
  const at::Tensor batch = at::randn({kRows, kPositions, kWidth});
  model.step(session.rows(batch), session.rows(batch), step.loss);
}

int main() { return run_program(plan_it); }
