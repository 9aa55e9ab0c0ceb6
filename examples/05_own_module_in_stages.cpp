/// Trains your own torch::nn::Module as a pipeline of three stages on three ranks (threads of this process), which work
/// on different micro-batches at the same time. What a stage returns is what the next one is given: here also the
/// input, which a skip takes past the second. The losses are compared with those of one rank.

#include <fmt/format.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "caravan/base/runtime.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/engine/stages/stage_runner.h"
#include "caravan/module/adapter.h"
#include "caravan/techniques/pipeline/pipeline.h"

using namespace caravan;
constexpr int kSteps = 100, kMicroBatches = 6, kBatch = 240;

/// Three units: a stage is one or more of them. Each hands on what it does not use, also the labels, which come last:
/// with the input of the last stage, and on one rank with that of the first.
std::vector<ModuleAdapter::Unit> units_of(const torch::nn::Sequential& net) {
  const auto layer = [net](size_t i) { return net->ptr<torch::nn::LinearImpl>(i); };
  return {{"first",
           {layer(0)},  // {x, ..} -> {hidden, x, ..}
           [=](Tensors in) {
             in.insert(in.begin(), layer(0)->forward(in[0]).tanh());
             return in;
           }},
          {"middle",
           {layer(1)},  // {hidden, x, ..} -> {hidden, x, ..}
           [=](Tensors in) {
             in[0] = layer(1)->forward(in[0]).tanh();
             return in;
           }},
          {"last",
           {layer(2)},  // {hidden, x, labels} -> {loss}
           [=](const Tensors& in) -> Tensors {
             const at::Tensor logits = layer(2)->forward(at::cat({in[0], in[1]}, 1));
             const at::Tensor sum = at::binary_cross_entropy_with_logits(logits, in[2], {}, {}, at::Reduction::Sum);
             return {sum / kBatch};  // divided by the rows of all micro-batches: gradients are summed
           }}};
}

std::vector<double> train(int ranks) {
  std::vector<double> losses(kSteps, 0);
  run_thread_ranks(ranks, [&](const std::shared_ptr<Communicator>& world) {
    Mesh mesh = Mesh::create(world, {{"pp", ranks}});
    at::Generator same = at::detail::createCPUGenerator(1);
    torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::Linear(64, 64), torch::nn::Linear(66, 1));
    const at::NoGradGuard no_grad;
    for (at::Tensor& weight : net->parameters()) weight.uniform_(-0.3, 0.3, same);
    ModuleAdapter model(net.ptr(), units_of(net), mesh);
    Strategy strategy = whole_model(model, mesh);
    add_pipeline(strategy, mesh, {.choice = {.schedule = {"pipeline", "zb-h1"}}});  // or "1f1b", "gpipe", ..
    Engine engine(model, mesh, strategy);
    StageRunner runner(engine);
    torch::optim::AdamW optimizer(engine.parameters(), torch::optim::AdamWOptions(0.01));  // of this rank's stage
    const at::Tensor i = at::arange(kBatch, at::kFloat);
    const at::Tensor x = at::stack({(i * 0.7548777).frac() * 4 - 2, (i * 0.5698403).frac() * 4 - 2}, 1);
    const at::Tensor y = x.square().sum(1, /*keepdim=*/true).lt(1).to(at::kFloat);
    const at::AutoGradMode with_gradients(true);
    for (int step = 0; step < kSteps; ++step) {
      const double loss = runner.run_step(kMicroBatches, [&](int m) {
        return MicroBatch{x.chunk(kMicroBatches)[m], y.chunk(kMicroBatches)[m]};
      });
      optimizer.step();
      if (mesh["pp"].coord() == ranks - 1) losses[step] = loss;  // the last stage has it
    }
  });
  return losses;
}

int main() {
  const Runtime runtime;
  const std::vector<double> three = train(3), one = train(1);
  for (const int step : {0, 10, kSteps - 1})
    fmt::print("step {:3}: loss {:.6f} on 3 ranks, {:.6f} on 1\n", step, three[step], one[step]);
  return std::abs(three[10] - one[10]) < 1e-4 && three[kSteps - 1] < one[0] / 2 ? 0 : 1;
}
