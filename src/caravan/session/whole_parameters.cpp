#include "caravan/session/whole_parameters.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/optim/check_on_device.h"

namespace caravan {
namespace {

/// Layers that are split compute with parts, which have no owner here.
void check_unsplit(Engine& engine) {
  const std::string& stages = engine.strategy().pipeline_axis;
  for (const Parameter* parameter : engine.model().parameters()) {
    for (const auto& [axis, placement] : parameter->unsharded_layout().entries()) {
      if (!placement.is_shard() || axis == stages || !parameter->requires_grad()) continue;
      if (engine.mesh().has(axis) && engine.mesh()[axis].size() == 1) continue;
      throw UsageError({"whole_parameters", parameter->name(),
                        fmt::format("is split over {}, where layers compute with parts of it", axis),
                        engine.mesh().where(), "use data-parallel ranks and stages only, or Muon of this library"});
    }
  }
}

const FlatState& checked_state(Engine& engine) {
  all_or_none(engine.mesh().world(), [&] {
    check_unsplit(engine);
    check_on_device(engine.state(), "whole_parameters", "needs whole parameters");
  });
  return engine.state();
}

}  // namespace

WholeParameters::WholeParameters(Engine& engine)
    : engine_(engine),
      ranks_(engine.mesh(), {checked_state(engine).pipeline_axis, engine.state().apart_axis}),
      plan_(planned()),
      exchange_(plan_, ranks_, engine.state().values.options()),
      parameters_(engine.model().parameters()) {
  for (size_t i = 0; i < plan_.matrices().size(); ++i) {
    add(*engine.state().layout.slots()[plan_.matrices()[i].slot].parameter, i);
  }
  const at::NoGradGuard no_grad;
  gather(engine.state().values, values_);
}

MatrixPlan WholeParameters::planned() const {
  std::optional<MatrixPlan> plan;
  all_or_none(ranks_.mesh().world(), [&] { plan.emplace(engine_.state().layout, ranks_, WholeUnits::parameters); });
  return std::move(*plan);
}

void WholeParameters::add(const Parameter& parameter, size_t matrix) {
  const int owner = plan_.matrices()[matrix].owner;
  std::vector<int64_t> shape = parameter.global_shape();
  if (owner != ranks_.rank()) shape[0] = 0;
  const at::Tensor tensor = at::empty(shape, engine_.state().values.options());
  Parameter& whole = *whole_.emplace_back(std::make_unique<Parameter>(parameter.name(), parameter.spec()));
  whole.set_sharded(tensor, layout_of(parameter, owner));
  whole.set_requires_grad(true);
  values_.push_back(owner == ranks_.rank() ? tensor.detach() : at::Tensor());
  *std::ranges::find(parameters_, &parameter) = &whole;
}

/// All rows on `owner`, of its stage.
Layout WholeParameters::layout_of(const Parameter& parameter, int owner) const {
  const Mesh& mesh = ranks_.mesh();
  const std::string& stages = engine_.strategy().pipeline_axis;
  std::vector<Layout::Entry> entries;
  if (parameter.sharded_layout().has(stages)) entries.emplace_back(stages, parameter.sharded_layout()[stages]);
  for (const MeshAxis& axis : mesh.axes()) {
    if (!ranks_.spans(axis.name())) continue;
    entries.emplace_back(axis.name(), Shard{.owner = ranks_.coord(owner, axis.name())});
  }
  return Layout(std::move(entries)).completed(mesh, Invariant{});
}

std::vector<at::Tensor> WholeParameters::tensors() const {
  std::vector<at::Tensor> all;
  for (const Slot& slot : engine_.state().layout.slots()) {
    if (!slot.parameter->requires_grad()) continue;
    const auto found = std::ranges::find_if(plan_.matrices(), [&](const WholeMatrix& matrix) {
      return engine_.state().layout.slots()[matrix.slot].parameter == slot.parameter;
    });
    if (found == plan_.matrices().end()) {
      all.push_back(slot.parameter->sharded());  // whole on every rank, or of another stage
    } else if (found->owner == ranks_.rank()) {
      all.push_back(whole_[static_cast<size_t>(found - plan_.matrices().begin())]->sharded());
    }
  }
  return all;
}

WholeParameters::Tensors WholeParameters::of_round(const MatrixPlan::Round& round, const Tensors& all) const {
  Tensors own;
  for (const size_t i : round.matrices) {
    const WholeMatrix& matrix = plan_.matrices()[i];
    own.push_back(all[i].defined() ? all[i].view({matrix.rows, matrix.columns}) : at::Tensor());
  }
  return own;
}

void WholeParameters::gather(const FlatMemory& from, const Tensors& to) const {
  const std::vector<Slot>& slots = engine_.state().layout.slots();
  for (const MatrixPlan::Round& round : plan_.rounds()) {
    exchange_.gather(round, of_round(round, to),
                     [&](const WholeMatrix& matrix, int64_t first, const at::Tensor& elements) {
                       elements.copy_(from.narrow(slots[matrix.slot].sharded_offset + first, elements.numel()));
                     });
  }
}

void WholeParameters::scatter() {
  FlatState& state = engine_.state();
  for (const MatrixPlan::Round& round : plan_.rounds()) {
    exchange_.scatter(round, of_round(round, values_),
                      [&](const WholeMatrix& matrix, int64_t first, const at::Tensor& elements) {
                        const int64_t offset = state.layout.slots()[matrix.slot].sharded_offset + first;
                        state.values.narrow(offset, elements.numel()).copy_(elements);
                      });
  }
}

void WholeParameters::update(const std::function<void()>& update) {
  Tensors gradients;
  {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& value : values_) {
      gradients.push_back(value.defined() ? at::empty(value.sizes(), value.options()) : at::Tensor());
    }
    gather(engine_.state().values, values_);
    gather(engine_.state().gradients, gradients);
  }
  const auto set_gradients = [&](bool are_there) {
    for (size_t i = 0; i < whole_.size(); ++i) {
      at::Tensor tensor = whole_[i]->sharded();
      if (gradients[i].defined()) tensor.mutable_grad() = are_there ? gradients[i] : at::Tensor();
    }
  };
  set_gradients(true);
  all_or_none(engine_.mesh().world(), update, "update of whole parameters");
  set_gradients(false);
  const at::NoGradGuard no_grad;
  scatter();
  has_updated_ = true;
}

std::vector<Parameter*> updated_parameters(Engine& engine, const WholeParameters* whole) {
  return whole != nullptr ? whole->parameters() : engine.model().parameters();
}

}  // namespace caravan
