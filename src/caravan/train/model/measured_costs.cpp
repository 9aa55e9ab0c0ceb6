#include "caravan/train/model/measured_costs.h"

#include <algorithm>
#include <chrono>

#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include "caravan/comm/record.h"
#include "caravan/engine/engine.h"
#include "caravan/models/model.h"
#include "caravan/nn/experts/router.h"
#include "caravan/train/choice.h"

namespace caravan {
namespace {

constexpr int kSteps = 5;
using Clock = std::chrono::steady_clock;

double ms_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

/// Forward and backward times of each block of `model` in one step, each with a separate graph.
std::vector<double> times_of_step(Engine& engine, const at::Tensor& ids) {
  Module& model = engine.model();
  const size_t count = model.blocks().size();
  std::vector<double> times(count, 0);
  Tensors inputs{ids};
  std::vector<Tensors> ends;
  engine.begin_step();
  for (size_t block = 0; block < count; ++block) {
    if (block + 1 == count) inputs.push_back(ids);  // labels
    const Clock::time_point begin = Clock::now();
    ends.push_back(model.run_blocks(block, block + 1, inputs, {}));
    times[block] = ms_between(begin, Clock::now());
    inputs.clear();
    for (const at::Tensor& end : ends.back()) inputs.push_back(end.detach().requires_grad_());
  }
  for (size_t block = count; block-- > 0;) {
    Tensors outputs, gradients;
    for (const at::Tensor& end : ends[block]) {
      if (!end.requires_grad()) continue;  // a frozen embedding has no backward
      outputs.push_back(end);
      gradients.push_back(at::ones_like(end));
    }
    const Clock::time_point begin = Clock::now();
    if (!outputs.empty()) torch::autograd::backward(outputs, gradients);
    times[block] += ms_between(begin, Clock::now());
  }
  engine.finish_step();
  return times;
}

/// The speeds of the coordinates of the pipeline, whose slowest rank takes so long for a layer; none if they differ by
/// no more than measurements do.
std::vector<double> speeds_of_stages(double layer_ms, const Mesh& mesh) {
  constexpr double kUnlike = 1.2;
  const MeshAxis& axis = mesh["pp"];
  std::vector<double> times(static_cast<size_t>(axis.size()), 0);
  times[static_cast<size_t>(axis.coord())] = layer_ms;
  const Buffer buffer{times.data(), static_cast<int64_t>(times.size()), Dtype::fp64};
  mesh.world().all_reduce(buffer, buffer, ReduceOp::max, "speeds of stages");
  const auto [least, most] = std::ranges::minmax(times);
  if (most < kUnlike * least) return {};
  for (double& time : times) time = least / time;
  return times;
}

}  // namespace

UnitCosts measured_costs(const Recipe& recipe, const ModelConfig& model, const Mesh& mesh) {
  const ModelConfig one_layer = first_layers(model, 1);  // with an encoder, one of each
  const std::unique_ptr<Model> small = make_model(one_layer);
  const Mesh alone = Mesh::create(make_record_world(0, 1), {{"dp", 1}});
  Strategy strategy = whole_model(*small, alone);
  StrategyChoice dtypes;
  set_dtypes(dtypes, recipe.precision);
  strategy.compute_dtype = dtypes.compute_dtype;
  Engine engine(*small, alone, std::move(strategy), Engine::Options{});
  // Balanced over the batch, experts need shares; their values do not affect times.
  for (Router* router : routers_of(*small)) {
    const auto experts = static_cast<size_t>(router->config().experts);
    router->set_shares(std::vector<double>(experts, 1.0 / static_cast<double>(experts)));
  }
  const at::Tensor ids = at::zeros({plan_batch(recipe, mesh.size()).micro_batch, model.row_length()}, at::kLong);
  std::vector<std::vector<double>> steps;
  for (int step = 0; step <= kSteps; ++step) steps.push_back(times_of_step(engine, ids));
  std::vector<double> medians;
  for (size_t block = 0; block < steps.front().size(); ++block) {
    std::vector<double> times;
    for (int step = 1; step <= kSteps; ++step) times.push_back(steps[static_cast<size_t>(step)][block]);
    std::ranges::nth_element(times, times.begin() + kSteps / 2);
    medians.push_back(times[kSteps / 2]);
  }
  UnitCosts costs{.speeds = speeds_of_stages(medians[1], mesh)};
  const Buffer buffer{medians.data(), static_cast<int64_t>(medians.size()), Dtype::fp64};
  mesh.world().all_reduce(buffer, buffer, ReduceOp::sum, "costs of layers");
  costs.of_units.push_back(medians.front() / mesh.size());
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const bool is_of_decoder = model.has_encoder() && !model.is_of_encoder(layer);
    costs.of_units.push_back(medians[is_of_decoder ? 2 : 1] / mesh.size());
  }
  costs.of_units.push_back(medians.back() / mesh.size());
  return costs;
}

}  // namespace caravan
