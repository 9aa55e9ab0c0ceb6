/// Pipelines whose passes sleep, one stage longer than the others. Compares the measured step with that of the
/// simulation that `inspect --schedule` draws (schedule/pipeline.h). 4 ranks, threads of this process.    slowed_stage

#include <chrono>
#include <thread>

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "caravan/base/runtime.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/engine/stages/stage_runner.h"
#include "caravan/module/adapter.h"
#include "caravan/schedule/pipeline.h"
#include "caravan/techniques/pipeline/pipeline.h"

using namespace caravan;

namespace {

constexpr int kRanks = 4;
constexpr int kMicroBatches = 8;
constexpr int kSlowStage = 2;
constexpr int kSteps = 7;

void sleep_ms(double ms) { std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms)); }

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Sleep : torch::autograd::Function<Sleep> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, double ms, double back_ms) {
    context->saved_data["back_ms"] = back_ms;
    sleep_ms(ms);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    sleep_ms(context->saved_data["back_ms"].toDouble());
    return {gradients[0], {}, {}};
  }
};

std::vector<StageCost> costs_of(int stages, double slower) {
  std::vector<StageCost> costs(static_cast<size_t>(stages),
                               {.forward = 10, .backward = 20, .weight = 0, .recompute = 10});
  StageCost& slow = costs[kSlowStage];
  for (double* cost : {&slow.forward, &slow.backward, &slow.recompute}) *cost *= slower;
  return costs;
}

std::vector<ModuleAdapter::Unit> units_of(const torch::nn::Sequential& net, const std::vector<StageCost>& costs) {
  std::vector<ModuleAdapter::Unit> units;
  for (size_t i = 0; i < costs.size(); ++i) {
    const auto layer = net->ptr<torch::nn::LinearImpl>(i);
    const bool is_last = i + 1 == costs.size();
    units.push_back(
        {fmt::format("stage {}", i), {layer}, [layer, cost = costs[i], is_last](const Tensors& in) -> Tensors {
           const at::Tensor out = Sleep::apply(layer->forward(in[0]), cost.forward, cost.backward);
           return {is_last ? out.sum() : out};
         }});
  }
  return units;
}

/// The median step in ms, of the slowest rank.
double measured(const PipelineOptions& options, const std::vector<StageCost>& costs) {
  std::vector<double> steps(kSteps, 0);
  run_thread_ranks(kRanks, [&](const std::shared_ptr<Communicator>& world) {
    Mesh mesh = Mesh::create(world, {{"pp", kRanks}});
    torch::nn::Sequential net;
    for (size_t i = 0; i < costs.size(); ++i) net->push_back(torch::nn::Linear(4, 4));
    ModuleAdapter model(net.ptr(), units_of(net, costs), mesh);
    Strategy strategy = whole_model(model, mesh);
    add_pipeline(strategy, mesh, options);
    Engine engine(model, mesh, strategy);
    StageRunner runner(engine);
    for (double& step : steps) {
      world->barrier();
      const double begin = now_ms();
      runner.run_step(kMicroBatches, [](int) { return MicroBatch{at::ones({2, 4}), at::ones({2, 4})}; });
      world->barrier();
      if (world->rank() == 0) step = now_ms() - begin;
    }
  });
  std::ranges::nth_element(steps, steps.begin() + kSteps / 2);
  return steps[kSteps / 2];
}

}  // namespace

int main() {
  const Runtime runtime;
  bool is_near = true;
  for (const double slower : {1.0, 1.5, 3.0}) {
    for (const char* schedule : {"naive", "gpipe", "1f1b", "interleaved"}) {
      for (const bool recompute : {false, true}) {
        const PipelineOptions options{.choice = {.degree = kRanks, .schedule = {"pipeline", schedule}},
                                      .recompute = recompute};
        const std::vector<StageCost> costs = costs_of(static_cast<int>(options.choice.num_stages()), slower);
        const Timeline plan = simulate(pipeline_order(options.choice, kMicroBatches, recompute), costs);
        const double ms = measured(options, costs);
        is_near = is_near && std::abs(ms / plan.total - 1) < 0.1;
        fmt::print("stage {} x {:.1f}  {:11}  {:9}  predicted {:6.1f} ms  measured {:6.1f} ms  ratio {:.3f}\n",
                   kSlowStage, slower, schedule, recompute ? "recompute" : "", plan.total, ms, ms / plan.total);
      }
    }
  }
  return is_near ? 0 : 1;
}
