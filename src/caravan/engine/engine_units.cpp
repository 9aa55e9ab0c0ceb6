#include <algorithm>
#include <exception>

#include <ATen/core/grad_mode.h>

#include "caravan/base/trace/trace.h"
#include "caravan/engine/engine.h"

namespace caravan {
namespace {

using Kind = Action::Kind;

/// The groups that an evaluation loads from another tier while `unit` runs: those of the units after it on this rank.
/// A chunk has a slot only while it is used, and what several stages share stays there for the whole evaluation.
std::vector<int> groups_ahead(const Strategy& strategy, const Mesh& mesh, const Units& units, int unit) {
  std::vector<int> groups;
  if (unit < 0 || strategy.parameters_tier == Tier::device) return groups;
  const int own = strategy.pipeline_axis.empty() ? 0 : mesh[strategy.pipeline_axis].coord();
  int left = strategy.fetch_ahead;
  for (auto next = static_cast<size_t>(unit) + 1; next < units.units.size() && left > 0; ++next) {
    if (strategy.coord_of(units.units[next].stage) != own) continue;
    --left;
    for (const int group : units.units[next].groups) {
      const Units::Group& about = units.groups[static_cast<size_t>(group)];
      if (about.is_fetched && !about.is_chunk && !about.is_joint) groups.push_back(group);
    }
  }
  return groups;
}

}  // namespace

void Engine::add_unit_hooks() {
  for (size_t u = 0; u < strategy_.units.size(); ++u) {
    const auto run = [this, unit = static_cast<int>(u)](Module& module, Tensors inputs, const ForwardContext& context,
                                                        const Next& next) {
      return run_unit(unit, module, std::move(inputs), context, next);
    };
    hooks_.push_back(strategy_.units[u].module->add_hook(run, Module::Place::outermost));
  }
}

Tensors Engine::run_unit(int unit, Module& module, Tensors inputs, const ForwardContext& context, const Next& next) {
  const bool is_of_step = mode_ != Mode::idle && context.is_training() && context.layouts == nullptr;
  if (context.layouts != nullptr) return next(std::move(inputs), context);
  struct Running {  // also if the forward throws
    std::vector<int>& units;
    ~Running() { units.pop_back(); }
  };
  running_.push_back(unit);
  const Running running{running_};
  std::vector<const void*> given;
  for (const at::Tensor& input : inputs) given.push_back(input.unsafeGetTensorImpl());
  Tensors outputs;
  if (!is_of_step) {
    return mode_ == Mode::idle ? run_alone(unit, std::move(inputs), context, next)
                               : run_aside(unit, std::move(inputs), context, next);
  }
  const bool is_forward = context.phase == Phase::forward;
  const bool is_counted = is_forward && passes_ == nullptr;
  const int micro_batch = is_counted ? num_forwards_[static_cast<size_t>(unit)]++ : context.micro_batch;
  reach({.kind = is_forward ? Kind::forward : Kind::recompute, .unit = unit, .micro_batch = micro_batch});
  const TraceSpan span(TraceLog::kCompute, is_forward ? "forward" : "recompute", module.name(),
                       {{"micro_batch", micro_batch}});
  const bool captures = is_forward && strategy_.units[static_cast<size_t>(unit)].moves_activations;
  const Activations::Scope scope(activations_.get(), unit, micro_batch, captures);
  if (context.micro_batch == micro_batch) {
    outputs = next(std::move(inputs), context);
  } else {
    ForwardContext own = context;
    own.micro_batch = micro_batch;
    outputs = next(std::move(inputs), own);
  }
  for (at::Tensor& output : outputs) {  // if a unit passes an output on: the hook must be this unit's
    if (std::find(given.begin(), given.end(), output.unsafeGetTensorImpl()) == given.end()) continue;
    if (at::GradMode::is_enabled() && output.requires_grad()) output = output.view_as(output);
  }
  if (at::GradMode::is_enabled()) announce_backward(unit, micro_batch, outputs);
  return outputs;
}

/// Outside of a step: the next unit gathers what it needs and frees the rest.
Tensors Engine::run_alone(int unit, Tensors inputs, const ForwardContext& context, const Next& next) {
  if (running_.size() == 1 && !is_evaluating_) gather_for(-1);  // what a forward that threw has left
  // Where nobody tells of updates, once for each forward.
  const bool may_have_changed = state_.is_versioned || unit <= last_alone_ || last_alone_ < 0;
  if (may_have_changed && running_.size() == 1 && !is_evaluating_) unsharded_->refresh();
  last_alone_ = unit;
  gather_for(unit);
  for (const int group : state_.layout.units().units[static_cast<size_t>(unit)].groups) unsharded_->wait(group);
  if (is_evaluating_) {
    for (const int group : groups_ahead(strategy_, mesh_, state_.layout.units(), unit)) unsharded_->fetch(group);
  }
  Tensors outputs = next(std::move(inputs), context);
  if (running_.size() == 1) {
    gather_for(-1);
    if (!is_evaluating_) end_reading();
  }
  return outputs;
}

/// An evaluation within a step: keeps what the schedule has gathered.
Tensors Engine::run_aside(int unit, Tensors inputs, const ForwardContext& context, const Next& next) {
  std::vector<std::pair<int, bool>> borrowed;  // with whether a chunk has a slot
  for (const int group : state_.layout.units().units[static_cast<size_t>(unit)].groups) {
    if (!unsharded_->is_there(group)) borrowed.emplace_back(group, unsharded_->has_slot(group));
    unsharded_->gather(group);
    unsharded_->wait(group);
  }
  Tensors outputs = next(std::move(inputs), context);
  for (const auto& [group, has_slot] : borrowed) unsharded_->free(group, has_slot);
  return outputs;
}

/// The gradient of the first output that requires one comes after everything that used the unit's outputs.
void Engine::announce_backward(int unit, int micro_batch, const Tensors& outputs) {
  auto is_announced = std::make_shared<bool>(false);
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    output.register_hook([this, unit, micro_batch, is_announced, alive = std::weak_ptr(is_alive_)](const at::Tensor&) {
      if (alive.expired()) return;
      if (!*is_announced && mode_ != Mode::idle)
        reach({.kind = Kind::backward, .unit = unit, .micro_batch = micro_batch});
      *is_announced = true;
    });
  }
}

void Engine::gather_for(int unit) {
  const Units& units = state_.layout.units();
  std::vector<int> needed;
  for (int u = unit; u >= 0; u = units.units[static_cast<size_t>(u)].parent) {
    const auto& groups = units.units[static_cast<size_t>(u)].groups;
    needed.insert(needed.end(), groups.begin(), groups.end());
  }
  std::vector<int> ahead;
  if (is_evaluating_) ahead = groups_ahead(strategy_, mesh_, units, last_alone_);
  for (int group = 0; group < static_cast<int>(units.groups.size()); ++group) {
    const Units::Group& about = units.groups[static_cast<size_t>(group)];
    if (!unsharded_->is_gathered(group) || about.is_joint) continue;
    const bool is_needed = std::find(needed.begin(), needed.end(), group) != needed.end();
    if (is_needed) unsharded_->gather(group);
    const bool stays = holds_all() || (is_evaluating_ && keeps_unsharded(strategy_.unsharded_memory));
    const bool is_ahead = std::ranges::find(ahead, group) != ahead.end();
    if (!is_needed && !is_ahead && unsharded_->is_held(group) && !stays) unsharded_->free(group);
  }
}

void Engine::free_all() {
  for (int group = 0; group < static_cast<int>(state_.layout.units().groups.size()); ++group) {
    if (unsharded_->is_gathered(group) && unsharded_->is_held(group)) unsharded_->free(group);
  }
}

void Engine::unshard() {
  free_all();
  for (int group = 0; group < static_cast<int>(state_.layout.units().groups.size()); ++group) {
    if (unsharded_->is_gathered(group)) unsharded_->gather(group);
  }
  free_all();
}

void Engine::end_reading() {
  for (const MeshAxis& axis : state_.shared_axes) axis.comm().barrier("parameters were read");
}

void Engine::begin_evaluation(bool of_step) {
  num_exceptions_ = std::uncaught_exceptions();
  free_all();
  is_evaluating_ = true;
  unsharded_->refresh(of_step);
  if (versions_ != nullptr) versions_->renew();
  const Units& units = state_.layout.units();
  for (int group = 0; group < static_cast<int>(units.groups.size()); ++group) {
    if (units.groups[static_cast<size_t>(group)].is_joint && is_on_this_stage(group)) unsharded_->gather(group);
  }
}

void Engine::end_evaluation() noexcept {
  is_evaluating_ = false;
  try {
    free_all();
    if (std::uncaught_exceptions() == num_exceptions_) end_reading();  // else the peers may have continued
  } catch (const std::exception&) {  // a peer is lost: the next collective throws the same error
  }
}

void Engine::catch_up() {
  if (state_.lags()) unsharded_->refresh();
}

/// Joint groups are moved over the axis of the stages that share them; other stages are not on that axis.
bool Engine::is_on_this_stage(int group) const {
  if (strategy_.pipeline_axis.empty()) return true;
  const Units& units = state_.layout.units();
  const int rank = mesh_[strategy_.pipeline_axis].coord();
  return std::any_of(units.units.begin(), units.units.end(), [&](const Units::Unit& unit) {
    return strategy_.coord_of(unit.stage) == rank &&
           std::find(unit.groups.begin(), unit.groups.end(), group) != unit.groups.end();
  });
}

}  // namespace caravan
