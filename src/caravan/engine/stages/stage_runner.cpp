#include "caravan/engine/stages/stage_runner.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include "caravan/redistribute/redistribute.h"

namespace caravan {
namespace {

/// The blocks of each stage: its outermost units are blocks of the model, in order.
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

/// The gradients of inputs that require one; zeros if nothing has used an input.
Tensors gradients_of(const Tensors& inputs) {
  Tensors gradients;
  for (const at::Tensor& input : inputs) {
    if (!input.requires_grad()) continue;
    gradients.push_back(input.grad().defined() ? input.grad() : at::zeros_like(input));
  }
  return gradients;
}

/// For the outputs of a forward without a graph: they require gradients, unless they are inputs that do not.
void promise_gradients(Tensors& outputs, const Tensors& inputs) {
  for (at::Tensor& output : outputs) {
    const auto is_this = [&](const at::Tensor& input) { return input.is_same(output); };
    const bool is_passed_on = std::ranges::any_of(inputs, is_this);
    const bool has_gradient = is_passed_on ? output.requires_grad() : at::isFloatingType(output.scalar_type());
    output = output.detach().set_requires_grad(has_gradient);
  }
}

}  // namespace

StageRunner::StageRunner(Engine& engine)
    : engine_(engine),
      num_stages_(engine.state().layout.units().num_stages()),
      blocks_(blocks_of_stages(engine.model(), engine.strategy(), num_stages_)),
      draws_(std::ranges::any_of(engine.model().parameters(), [](const auto* slot) { return slot->is_external(); })),
      links_(engine.mesh(), engine.strategy(), engine.state().values.options().device()) {}

bool StageRunner::is_here(int stage) const {
  const std::string& axis = engine_.strategy().pipeline_axis;
  return axis.empty() || engine_.mesh()[axis].coord() == engine_.strategy().coord_of(stage);
}

bool StageRunner::crosses_into(int stage) const {
  const Strategy& strategy = engine_.strategy();
  return stage > 0 && stage < num_stages_ && strategy.coord_of(stage - 1) != strategy.coord_of(stage);
}

double StageRunner::run_step(int num_micro_batches, Source source, StepExchange* exchange) {
  return run(num_micro_batches, std::move(source), [&] { engine_.run_step(num_micro_batches, *this, exchange); });
}

double StageRunner::run_local_step(int num_micro_batches, Source source) {
  return run(num_micro_batches, std::move(source), [&] { engine_.run_local_step(num_micro_batches, *this); });
}

double StageRunner::run_updates(int num_micro_batches, Source source, Update update) {
  update_ = std::move(update);
  return run_step(num_micro_batches, std::move(source));
}

template <class Run>
double StageRunner::run(int num_micro_batches, Source source, const Run& run_engine) {
  source_ = std::move(source);
  loss_ = 0;
  inputs_.clear();
  outputs_.clear();
  gradients_.clear();
  rewound_.clear();
  hidden_.clear();
  recomputed_.clear();
  promised_.clear();
  const Schedule& table = engine_.table(num_micro_batches);
  const Units& units = engine_.state().layout.units();
  for (const Action& entry : table) {
    const Units::Unit& unit = units.units[static_cast<size_t>(entry.unit)];
    const bool begins_pass = entry.kind == Action::Kind::recompute && unit.parent < 0;
    if (begins_pass) recomputed_.insert({unit.stage, entry.micro_batch});
  }
  links_.begin_step(table, num_micro_batches);
  run_engine();
  links_.finish_step();
  source_ = nullptr;
  return loss_;
}

std::vector<Module*> StageRunner::blocks_of(int stage) const {
  const std::vector<Module*> all = engine_.model().blocks();
  const auto [first, last] = blocks_[static_cast<size_t>(stage)];
  return {all.begin() + static_cast<std::ptrdiff_t>(first), all.begin() + static_cast<std::ptrdiff_t>(last)};
}

Tensors StageRunner::run_stage(int stage, const Tensors& from, const MicroBatch& batch) {
  Tensors inputs = stage == 0 ? Tensors{batch.ids} : from;
  if (stage == num_stages_ - 1 && batch.labels.defined()) inputs.push_back(batch.labels);
  if (num_stages_ == 1) return engine_.model().run(std::move(inputs), batch.context);
  const auto [first, last] = blocks_[static_cast<size_t>(stage)];
  return engine_.model().run_blocks(first, last, std::move(inputs), batch.context);
}

/// The inputs of a forward or recompute; the same tensors each time, since their gradients are read later.
Tensors StageRunner::inputs_of(const Key& key) {
  const auto [stage, micro_batch] = key;
  if (stage == 0) return {};
  const auto found = inputs_.find(key);
  if (found != inputs_.end()) return found->second;
  const Key before{stage - 1, micro_batch};  // on this rank too
  Tensors inputs;
  for (const at::Tensor& output : outputs_.at(before)) {
    inputs.push_back(output.detach().set_requires_grad(output.requires_grad()));
  }
  if (recomputed_.contains(before)) outputs_.erase(before);
  return inputs_[key] = inputs;
}

void StageRunner::forward(int stage, int micro_batch) {
  const Key key{stage, micro_batch};
  MicroBatch batch = source_(micro_batch);
  batch.context.micro_batch = micro_batch;
  const Tensors inputs = inputs_of(key);
  if (!recomputed_.contains(key)) {
    outputs_[key] = run_stage(stage, inputs, batch);
    return;
  }
  for (Module* block : blocks_of(stage)) hidden_[key].emplace_back(*block, draws_);
  const at::NoGradGuard no_grad;
  Tensors outputs = run_stage(stage, inputs, batch);
  for (ReplayState& state : hidden_[key]) state.keep_changed();
  promise_gradients(outputs, inputs);
  for (const at::Tensor& output : outputs) promised_[key].push_back(output.requires_grad());
  outputs_[key] = std::move(outputs);
}

void StageRunner::recompute(int stage, int micro_batch) {
  const Key key{stage, micro_batch};
  MicroBatch batch = source_(micro_batch);
  batch.context.micro_batch = micro_batch;
  batch.context.phase = Phase::recompute;
  for (const ReplayState& state : hidden_.at(key)) rewound_[key].push_back(std::make_unique<Rewound>(state));
  hidden_.erase(key);
  outputs_[key] = run_stage(stage, inputs_of(key), batch);
}

void StageRunner::backward(int stage, int micro_batch) {
  const Key key{stage, micro_batch};
  const Tensors outputs = std::move(outputs_.at(key));
  outputs_.erase(key);
  if (stage == num_stages_ - 1) {
    caravan::backward(outputs.front(), engine_.strategy().loss_layout);
    if (!outputs.front().is_meta()) loss_ += outputs.front().item<double>();
  } else {
    back_propagate(key, outputs);
  }
  rewound_.erase(key);
  if (stage > 0 && !engine_.state().layout.units().has_backward(stage - 1)) inputs_.erase(key);
}

void StageRunner::back_propagate(const Key& key, const Tensors& outputs) {
  const Key next{key.first + 1, key.second};
  const bool is_remote = crosses_into(next.first);
  const Tensors gradients = is_remote ? std::move(gradients_.at(key)) : gradients_of(inputs_.at(next));
  is_remote ? gradients_.erase(key) : inputs_.erase(next);
  const auto promised = promised_.find(key);
  Tensors ends;
  Tensors theirs;
  size_t given = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool has_gradient = promised == promised_.end() ? outputs[i].requires_grad() : promised->second[i];
    if (!has_gradient) continue;
    const at::Tensor& gradient = gradients.at(given++);
    if (!outputs[i].requires_grad()) continue;  // promised, but nothing before it is trained
    ends.push_back(outputs[i]);
    theirs.push_back(gradient);
  }
  torch::autograd::backward(ends, theirs);
}

void StageRunner::transfer(const Action& entry) {
  const int stage = engine_.state().layout.units().units[static_cast<size_t>(entry.unit)].stage;
  const Key after{stage, entry.micro_batch};
  const Key before{stage - 1, entry.micro_batch};
  const bool is_send = entry.kind == Action::Kind::send;
  if (!is_send) {
    (entry.is_gradient ? gradients_[before] : inputs_[after]) = links_.get(entry, stage);
    return;
  }
  if (entry.is_gradient) {
    links_.put(entry, stage, gradients_of(inputs_.at(after)));
    inputs_.erase(after);
    return;
  }
  links_.put(entry, stage, outputs_.at(before));
  if (recomputed_.contains(before)) outputs_.erase(before);
}

at::Tensor StageRunner::evaluate(const MicroBatch& batch) {
  const at::NoGradGuard no_grad;
  Tensors stream;
  for (int stage = 0; stage < num_stages_; ++stage) {
    if (!is_here(stage)) continue;
    if (crosses_into(stage)) stream = links_.get_alone(stage);
    stream = run_stage(stage, stream, batch);
    if (crosses_into(stage + 1)) links_.put_alone(stage + 1, stream);
  }
  links_.finish_step();
  return is_here(num_stages_ - 1) ? stream.front() : at::Tensor();
}

}  // namespace caravan
