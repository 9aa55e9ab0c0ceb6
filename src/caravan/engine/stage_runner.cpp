#include "caravan/engine/stage_runner.h"

#include <algorithm>
#include <array>
#include <numeric>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "caravan/base/error.h"
#include "caravan/redistribute/redistribute.h"

namespace caravan {
namespace {

constexpr int64_t kMostDims = 6;
/// What goes before a tensor: its dtype, number of dims, sizes.
constexpr int64_t kHeader = kMostDims + 2;

/// The cell of a pipeline boundary: S(0; on `from`) -> S(0; on `to`).
FlatCell crossing(const MeshAxis& axis, int from, int to) {
  return {axis, Shard{.dim = 0, .owner = from}, Shard{.dim = 0, .owner = to}};
}

/// The blocks of each stage: its units that stand in no other unit are blocks of the model, in their order.
std::vector<std::pair<size_t, size_t>> blocks_of_stages(Module& model, const Strategy& strategy, int num_stages) {
  const std::vector<Module*> blocks = model.blocks();
  std::vector<std::pair<size_t, size_t>> ranges(static_cast<size_t>(num_stages), {blocks.size(), 0});
  for (const Strategy::Unit& unit : strategy.units) {
    const auto found = std::find(blocks.begin(), blocks.end(), unit.module);
    if (found == blocks.end()) continue;
    const auto index = static_cast<size_t>(found - blocks.begin());
    auto& [first, last] = ranges[static_cast<size_t>(unit.stage)];
    first = std::min(first, index);
    last = std::max(last, index + 1);
  }
  return ranges;
}

}  // namespace

StageRunner::StageRunner(Engine& engine)
    : engine_(engine),
      num_stages_(engine.state().layout.units().num_stages()),
      blocks_(blocks_of_stages(engine.model(), engine.strategy(), num_stages_)) {}

int StageRunner::rank_of(int stage) const {
  const std::vector<int>& ranks = engine_.strategy().rank_of_stage;
  return ranks.empty() ? stage : ranks[static_cast<size_t>(stage)];
}

double StageRunner::run_step(int num_micro_batches, Source source, StepExchange* exchange) {
  return run(std::move(source), [&] { engine_.run_step(num_micro_batches, *this, exchange); });
}

double StageRunner::run_local_step(int num_micro_batches, Source source) {
  return run(std::move(source), [&] { engine_.run_local_step(num_micro_batches, *this); });
}

template <class Run>
double StageRunner::run(Source source, const Run& run_engine) {
  source_ = std::move(source);
  loss_ = 0;
  inputs_.clear();
  outputs_.clear();
  gradients_.clear();
  run_engine();
  for (Work& work : sends_) work.wait();
  sends_.clear();
  source_ = nullptr;
  return loss_;
}

Tensors StageRunner::run_stage(int stage, const at::Tensor& input, const MicroBatch& batch) {
  Tensors inputs{stage == 0 ? batch.ids : input};
  if (stage == num_stages_ - 1 && batch.labels.defined()) inputs.push_back(batch.labels);
  if (num_stages_ == 1) return engine_.model().run(std::move(inputs), batch.context);
  const auto [first, last] = blocks_[static_cast<size_t>(stage)];
  return engine_.model().run_blocks(first, last, std::move(inputs), batch.context);
}

void StageRunner::forward(int stage, int micro_batch) {
  const Key key{stage, micro_batch};
  MicroBatch batch = source_(micro_batch);
  batch.context.micro_batch = micro_batch;
  if (stage > 0 && !inputs_.contains(key)) {  // the stage before is on this rank too
    inputs_[key] = outputs_.at({stage - 1, micro_batch}).detach();
  }
  const Units& units = engine_.state().layout.units();
  at::Tensor input;
  if (stage > 0) input = inputs_.at(key).requires_grad_(units.has_backward(stage - 1));
  outputs_[key] = run_stage(stage, input, batch).front();
  if (stage > 0 && !units.has_backward(stage - 1)) inputs_.erase(key);  // nothing will ask for its gradient
}

void StageRunner::backward(int stage, int micro_batch) {
  const Key key{stage, micro_batch};
  const at::Tensor output = outputs_.at(key);
  outputs_.erase(key);
  if (stage == num_stages_ - 1) {
    caravan::backward(output, engine_.strategy().loss_layout);
    if (!output.is_meta()) loss_ += output.item<double>();
    return;
  }
  const Key next{stage + 1, micro_batch};
  const auto received = gradients_.find(key);
  const at::Tensor gradient = received != gradients_.end() ? received->second : inputs_.at(next).grad();
  if (received != gradients_.end()) {
    gradients_.erase(received);
  } else {
    inputs_.erase(next);
  }
  torch::autograd::backward({output}, {gradient});
}

void StageRunner::transfer(const Action& entry) {
  const int stage = engine_.state().layout.units().units[static_cast<size_t>(entry.unit)].stage;
  const Key after{stage, entry.micro_batch};
  const Key before{stage - 1, entry.micro_batch};
  const int low = rank_of(stage - 1);
  const int high = rank_of(stage);
  if (entry.kind == Action::Kind::send && !entry.is_gradient)
    send(outputs_.at(before).detach(), low, high, "activation");
  if (entry.kind == Action::Kind::recv && !entry.is_gradient) inputs_[after] = recv(low, high, "activation");
  if (entry.kind == Action::Kind::send && entry.is_gradient) {
    send(inputs_.at(after).grad(), high, low, "gradient of activation");
    inputs_.erase(after);
  }
  if (entry.kind == Action::Kind::recv && entry.is_gradient)
    gradients_[before] = recv(high, low, "gradient of activation");
}

void StageRunner::send(const at::Tensor& tensor, int from_rank, int to_rank, const Call& call) {
  const FlatCell cell = crossing(engine_.mesh()[engine_.strategy().pipeline_axis], from_rank, to_rank);
  if (tensor.dim() > kMostDims) {
    throw ShapeError({"pipeline", "activation", fmt::format("has {} dims", tensor.dim()), engine_.mesh().where(),
                      fmt::format("pass a tensor of at most {} dims from stage to stage", kMostDims)});
  }
  const at::Tensor flat = tensor.contiguous().view({-1});
  const at::Tensor header = at::empty({kHeader}, at::kLong);
  auto* numbers = header.mutable_data_ptr<int64_t>();
  std::fill_n(numbers, kHeader, 0);
  numbers[0] = static_cast<int64_t>(tensor.scalar_type());
  numbers[1] = tensor.dim();
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), numbers + 2);
  sends_.push_back(start(cell, header, header, "shape of activation"));
  if (flat.numel() > 0) sends_.push_back(start(cell, flat, flat, call));
}

at::Tensor StageRunner::recv(int from_rank, int to_rank, const Call& call) {
  const FlatCell cell = crossing(engine_.mesh()[engine_.strategy().pipeline_axis], from_rank, to_rank);
  const at::Tensor header = at::empty({kHeader}, at::kLong);
  start(cell, header, header, "shape of activation").wait();
  const auto* numbers = header.const_data_ptr<int64_t>();
  const std::vector<int64_t> shape(numbers + 2, numbers + 2 + numbers[1]);
  const at::Tensor flat = at::empty(shape, at::TensorOptions(static_cast<at::ScalarType>(numbers[0]))).view({-1});
  if (flat.numel() > 0) start(cell, flat, flat, call).wait();
  return flat.view(shape);
}

at::Tensor StageRunner::evaluate(const MicroBatch& batch) {
  const at::NoGradGuard no_grad;
  at::Tensor stream;
  for (int stage = 0; stage < num_stages_; ++stage) {
    const std::string& axis = engine_.strategy().pipeline_axis;
    const bool is_here = axis.empty() || engine_.mesh()[axis].coord() == rank_of(stage);
    if (!is_here) {
      stream = at::Tensor();
      continue;
    }
    if (stage > 0 && rank_of(stage - 1) != rank_of(stage)) {
      stream = recv(rank_of(stage - 1), rank_of(stage), "activation");
    }
    stream = run_stage(stage, stream, batch).front();
    if (stage + 1 < num_stages_ && rank_of(stage + 1) != rank_of(stage)) {
      send(stream, rank_of(stage), rank_of(stage + 1), "activation");
    }
  }
  for (Work& work : sends_) work.wait();
  sends_.clear();
  return stream;
}

}  // namespace caravan
