#include "caravan/session/whole_parameters.h"

#include <algorithm>
#include <array>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
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
      owners_(checked_state(engine), engine.mesh(), WholeUnits::parameters, "whole_parameters"),
      parameters_(engine.model().parameters()) {
  for (size_t i = 0; i < owners_.plan.matrices().size(); ++i) {
    add(*engine.state().layout.slots()[owners_.plan.matrices()[i].slot].parameter, i);
  }
  left_out_.resize(whole_.size());
  if (engine.state().values.is_meta()) num_watched_ = kWatched;
  const at::NoGradGuard no_grad;
  gather(engine.state().values, values_);
}

void WholeParameters::add(const Parameter& parameter, size_t matrix) {
  const int owner = owners_.plan.matrices()[matrix].owner;
  std::vector<int64_t> shape = parameter.global_shape();
  if (owner != owners_.ranks.rank()) shape[0] = 0;
  const MemoryKindScope kind(MemoryKind::parameters);
  const at::Tensor tensor = at::empty(shape, engine_.state().values.options());
  Parameter& whole = *whole_.emplace_back(std::make_unique<Parameter>(parameter.name(), parameter.spec()));
  whole.set_sharded(tensor, layout_of(parameter, owner));
  whole.set_requires_grad(true);
  values_.push_back(owner == owners_.ranks.rank() ? tensor.detach() : at::Tensor());
  *std::ranges::find(parameters_, &parameter) = &whole;
}

/// All rows on `owner`, of its stage.
Layout WholeParameters::layout_of(const Parameter& parameter, int owner) const {
  const Mesh& mesh = owners_.ranks.mesh();
  const std::string& stages = engine_.strategy().pipeline_axis;
  std::vector<Layout::Entry> entries;
  if (parameter.sharded_layout().has(stages)) entries.emplace_back(stages, parameter.sharded_layout()[stages]);
  for (const MeshAxis& axis : mesh.axes()) {
    if (!owners_.ranks.spans(axis.name())) continue;
    entries.emplace_back(axis.name(), Shard{.owner = owners_.ranks.coord(owner, axis.name())});
  }
  return Layout(std::move(entries)).completed(mesh, Invariant{});
}

std::vector<at::Tensor> WholeParameters::tensors() const {
  std::vector<at::Tensor> all;
  for (const Slot& slot : engine_.state().layout.slots()) {
    if (!slot.parameter->requires_grad()) continue;
    const auto found = std::ranges::find_if(owners_.plan.matrices(), [&](const WholeMatrix& matrix) {
      return engine_.state().layout.slots()[matrix.slot].parameter == slot.parameter;
    });
    if (found == owners_.plan.matrices().end()) {
      all.push_back(slot.parameter->sharded());  // whole on every rank, or of another stage
    } else if (found->owner == owners_.ranks.rank()) {
      all.push_back(whole_[static_cast<size_t>(found - owners_.plan.matrices().begin())]->sharded());
    }
  }
  return all;
}

WholeParameters::Tensors WholeParameters::of_round(const MatrixPlan::Round& round, const Tensors& all) const {
  Tensors own;
  for (const size_t i : round.matrices) {
    const WholeMatrix& matrix = owners_.plan.matrices()[i];
    own.push_back(all[i].defined() ? all[i].view({matrix.rows, matrix.columns}) : at::Tensor());
  }
  return own;
}

void WholeParameters::gather(const FlatMemory& from, const Tensors& to) const {
  const MemoryKindScope kind(MemoryKind::buffers);
  const std::vector<Slot>& slots = engine_.state().layout.slots();
  for (const MatrixPlan::Round& round : owners_.plan.rounds()) {
    owners_.exchange.gather(round, of_round(round, to),
                            [&](const WholeMatrix& matrix, int64_t first, const at::Tensor& elements) {
                              elements.copy_(from.narrow(slots[matrix.slot].sharded_offset + first, elements.numel()));
                            });
  }
}

/// Of the whole values of this rank.
WholeParameters::Tensors WholeParameters::gradients() const {
  Tensors all;
  {
    const MemoryKindScope kind(MemoryKind::gradients);
    for (const at::Tensor& value : values_) {
      all.push_back(value.defined() ? at::empty(value.sizes(), value.options()) : at::Tensor());
    }
  }
  gather(engine_.state().gradients, all);
  return all;
}

void WholeParameters::scatter() {
  const MemoryKindScope kind(MemoryKind::buffers);
  FlatState& state = engine_.state();
  for (const MatrixPlan::Round& round : owners_.plan.rounds()) {
    owners_.exchange.scatter(round, of_round(round, values_),
                             [&](const WholeMatrix& matrix, int64_t first, const at::Tensor& elements) {
                               const int64_t offset = state.layout.slots()[matrix.slot].sharded_offset + first;
                               state.values.narrow(offset, elements.numel()).copy_(elements);
                             });
  }
}

void WholeParameters::update(const std::function<void()>& update) {
  const auto set_gradients = [this](const Tensors& gradients) {
    for (size_t i = 0; i < whole_.size(); ++i) {
      if (!values_[i].defined()) continue;
      at::Tensor tensor = whole_[i]->sharded();
      tensor.mutable_grad() = gradients.empty() ? at::Tensor() : gradients[i];
    }
  };
  {
    struct Drop {  // also if the update throws
      const decltype(set_gradients)& set;
      ~Drop() { set({}); }
    } const drop{set_gradients};
    {
      const at::NoGradGuard no_grad;
      gather(engine_.state().values, values_);
      set_gradients(gradients());
    }
    const std::function<void()> see_changes = watch();
    all_or_none(engine_.mesh().world(), update, "update of whole parameters");
    see_changes();
  }
  const at::NoGradGuard no_grad;
  scatter();
}

/// By value: torch's own SGD writes through data(), which counts no version.
std::vector<double> WholeParameters::sums() const {
  std::vector<double> all;
  for (const at::Tensor& value : values_) all.push_back(value.defined() ? value.sum(at::kDouble).item<double>() : 0);
  return all;
}

std::function<void()> WholeParameters::watch() {
  if (num_watched_ == kWatched) return [] {};
  std::vector<bool> has_gradient;  // before an update that may drop gradients
  for (size_t i = 0; i < whole_.size(); ++i) {
    has_gradient.push_back(values_[i].defined() && whole_[i]->sharded().grad().any().item<bool>());
  }
  return [this, has_gradient, before = sums()] { see_changes(before, has_gradient); };
}

void WholeParameters::see_changes(const std::vector<double>& before, const std::vector<bool>& has_gradient) {
  const at::NoGradGuard no_grad;
  const std::vector<double> after = sums();
  std::vector<int> left_out = left_out_;
  std::string unchanged;
  for (size_t i = 0; i < after.size(); ++i) {
    left_out[i] += has_gradient[i] && after[i] == before[i] ? 1 : 0;
    if (left_out[i] == kWatched && unchanged.empty()) unchanged = whole_[i]->name();
  }
  Communicator& world = engine_.mesh().world();
  const int64_t mark = world.size() - world.rank();  // the largest is that of the lowest rank
  std::array<int64_t, 2> marks{after != before ? 1 : 0, unchanged.empty() ? 0 : mark};
  take_maxima(world, marks, "update of whole parameters");
  if (marks[0] == 0) return;
  left_out_ = std::move(left_out);
  ++num_watched_;
  if (marks[1] != mark) return;
  TORCH_WARN("update_whole: ", unchanged, " was not changed in ", kWatched,
             " updates that changed others: its gradient is there inside update_whole() only. do: step every optimizer "
             "of whole_parameters() inside update_whole()");
}

std::vector<Parameter*> updated_parameters(Engine& engine, const WholeParameters* whole) {
  return whole != nullptr ? whole->parameters() : engine.model().parameters();
}

}  // namespace caravan
