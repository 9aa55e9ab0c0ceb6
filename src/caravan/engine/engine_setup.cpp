#include <algorithm>
#include <set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "caravan/base/error.h"
#include "caravan/comm/same.h"
#include "caravan/comm/tensor.h"
#include "caravan/engine/engine.h"
#include "caravan/engine/groups.h"
#include "caravan/module/initialise.h"
#include "caravan/redistribute/redistribute.h"

namespace caravan {
namespace {

std::string describe(const at::Tensor& tensor, at::IntArrayRef shape) {
  const std::string dtype = tensor.defined() ? c10::toString(tensor.scalar_type()) : "not materialised";
  return fmt::format("{} [{}]", dtype, fmt::join(shape, ", "));
}

/// Axes over which this parameter's gradient is reduced: before, the ranks may have had different values.
std::vector<std::string> debt_axes(const ParameterLayouts& layouts, const Mesh& mesh) {
  std::vector<std::string> axes;
  for (const AxisMove& move : reduce_moves(layouts, mesh)) axes.push_back(move.axis);
  return axes;
}

/// Everything becomes what coordinate 0 of the axis has.
Work take_from_coordinate_0(const at::Tensor& flat, const MeshAxis& axis, const Call& call) {
  const Shard on_0{.dim = 0, .owner = 0, .rows = flat.numel()};
  std::vector<int64_t> counts(static_cast<size_t>(axis.size()), 0);
  counts.front() = flat.numel();
  const FlatCell cell{axis, on_0, Invariant{}, counts};
  return start(cell, axis.coord() == 0 ? flat : flat.narrow(0, 0, 0), flat, call);
}

void share(const at::Tensor& tensor, const std::vector<std::string>& axes, const Mesh& mesh, const Call& call) {
  if (tensor.numel() == 0) return;
  at::Tensor flat = tensor.detach().contiguous().view({-1});
  for (const std::string& axis : axes) {
    if (mesh[axis].size() > 1) take_from_coordinate_0(flat, mesh[axis], call).wait();
  }
  if (!tensor.is_meta() && flat.data_ptr() != tensor.data_ptr()) tensor.detach().copy_(flat.view(tensor.sizes()));
}

}  // namespace

void Engine::check_agreement() const {
  std::vector<SharedFact> facts{{"strategy", strategy_.name},
                                {"bucket_bytes", std::to_string(strategy_.bucket_bytes)},
                                {"compute_dtype", c10::toString(strategy_.leaf_dtype)},
                                {"allow_unused", strategy_.allow_unused ? "true" : "false"},
                                {"seed", std::to_string(options_.seed)}};
  for (const Parameter* parameter : model_.parameters()) {
    facts.push_back({parameter->name(), describe(parameter->rest(), parameter->global_shape()) +
                                            (parameter->requires_grad() ? "" : ", frozen")});
  }
  for (const auto& [name, buffer] : model_.buffers()) facts.push_back({name, describe(buffer, buffer.sizes())});
  check_same_on_all_ranks(mesh_.world(), strategy_.name, facts, "parameters and options");
  for (const Parameter* parameter : model_.parameters()) {
    if (parameter->requires_grad()) parameter->check_no_sink();
  }
  if (strategy_.bucket_bytes < 1) {
    throw UsageError({strategy_.name, "bucket_bytes", fmt::format("{} bytes hold no gradient", strategy_.bucket_bytes),
                      "", "use 1 or more"});
  }
  if (strategy_.leaf_dtype != at::kFloat && strategy_.leaf_dtype != at::kBFloat16) {
    throw UsageError({strategy_.name, "compute_dtype",
                      fmt::format("{} is not supported", c10::toString(strategy_.leaf_dtype)), "", "use fp32 or bf16"});
  }
  if (strategy_.num_stages() > 1 && !strategy_.table) {
    throw UsageError(
        {strategy_.name, "table", "a pipeline has no default order of its passes", "", "set Strategy::table"});
  }
  for (const Parameter* parameter : model_.parameters()) {
    if (state_.layout.has(*parameter)) continue;
    throw UsageError(
        {strategy_.name, parameter->name(), "belongs to no unit", "", "name a unit whose module holds it"});
  }
  if (state_.layout.trained_count() == 0 && mesh_.size() == 1) {
    throw UsageError({strategy_.name, "model", "no parameter requires a gradient", "", "train at least one"});
  }
}

/// Moves the parameters into flat buffers, or makes them there.
void Engine::take_parameters() {
  const at::NoGradGuard no_grad;
  at::ScalarType dtype = options_.dtype;
  at::Device device = options_.device;
  const Parameter* first = nullptr;
  for (const Slot& slot : state_.layout.slots()) {
    const at::Tensor& rest = slot.parameter->rest();
    if (!rest.defined()) continue;
    if (first == nullptr) {
      first = slot.parameter;
      dtype = rest.scalar_type();
      device = rest.device();
    }
    if (rest.scalar_type() == dtype && rest.device() == device) continue;
    throw UsageError({strategy_.name, slot.parameter->name(),
                      fmt::format("rests as {} on {}, but {} as {} on {}", c10::toString(rest.scalar_type()),
                                  rest.device().str(), first->name(), c10::toString(dtype), device.str()),
                      "", "let all parameters rest in one dtype on one device"});
  }
  if (dtype == at::kDouble && strategy_.leaf_dtype != at::kFloat) {
    throw UsageError({strategy_.name, "compute_dtype", "parameters rest in fp64, but are computed with in bf16", "",
                      "let them rest in fp32"});
  }
  const auto allocate = [&](int64_t count) {
    if (device.is_meta()) return at::empty({count}, at::TensorOptions().dtype(dtype).device(device));
    return allocate_flat(mesh_.world(), count, dtype);
  };
  state_.values = allocate(state_.layout.count());
  state_.gradients = allocate(state_.layout.trained_count());
  for (const Slot& slot : state_.layout.slots()) take_values(slot);
  share_values();
}

void Engine::take_values(const Slot& slot) {
  Parameter& parameter = *slot.parameter;
  const ParameterLayouts& layouts = layouts_of(strategy_, parameter);
  at::Tensor piece = state_.layout.view(state_.values, parameter);
  if (!parameter.rest().defined()) {
    const Box box = local_box(parameter.global_shape(), layouts.rest, mesh_, parameter.name());
    if (options_.initialise && !piece.is_meta() && piece.numel() > 0) {
      initialise(piece, parameter, box, options_.seed);
    }
    return;
  }
  const at::Tensor rest = parameter.rest().detach();
  const Layout before = parameter.rest_layout().completed(mesh_, Invariant{});
  if (before == layouts.rest) {
    piece.copy_(rest);
    return;
  }
  share(rest, debt_axes(layouts, mesh_), mesh_, parameter.name());
  piece.copy_(redistribute(rest, before, layouts.rest, mesh_, parameter.name()));
}

/// What rests invariant on data axes becomes what coordinate 0 has, and so do the buffers.
void Engine::share_values() {
  std::set<std::string> all;
  for (const Bucket& bucket : state_.layout.buckets()) {
    const Parameter& parameter = *state_.layout.slots()[bucket.first_slot].parameter;
    const std::vector<std::string> axes = debt_axes(layouts_of(strategy_, parameter), mesh_);
    all.insert(axes.begin(), axes.end());
    if (!parameter.rest().defined() || !bucket.is_at_rest()) continue;
    share(state_.values.narrow(0, bucket.rest_offset, bucket.rest_count), axes, mesh_, "parameters");
  }
  for (const auto& [name, buffer] : model_.buffers()) share(buffer, {all.begin(), all.end()}, mesh_, name);
}

/// The first elements of each trained parameter at rest, where leaves of outside code are others.
at::Tensor Engine::sample_values() const {
  constexpr int64_t kMost = 256;
  std::vector<at::Tensor> parts;
  for (const Slot& slot : state_.layout.slots()) {
    const Parameter& parameter = *slot.parameter;
    if (!parameter.is_external() || !parameter.requires_grad() || parameter.leaf().is_same(parameter.rest())) continue;
    parts.push_back(state_.values.narrow(0, slot.rest_offset, std::min(slot.rest_count(), kMost)));
  }
  return parts.empty() || state_.values.is_meta() ? at::Tensor() : at::cat(parts);
}

/// A user's optimizer that has the leaves would update them in vain.
void Engine::check_optimizer() {
  if (!values_before_.defined()) return;
  const at::Tensor before = std::move(values_before_);
  values_before_ = at::Tensor();
  if (before.numel() == 0 || !at::equal(before, sample_values())) return;
  throw UsageError(
      {strategy_.name, "optimizer",
       "no parameter has changed since the last step: it has those of the module, which are not what rests "
       "here",
       mesh_.where(), "give the optimizer engine.parameters() instead of module->parameters()"});
}

}  // namespace caravan
