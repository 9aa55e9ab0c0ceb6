#include <set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "caravan/base/error.h"
#include "caravan/comm/calls/same.h"
#include "caravan/engine/engine.h"
#include "caravan/engine/groups.h"
#include "caravan/engine/make_tiers.h"
#include "caravan/module/initialise.h"
#include "caravan/redistribute/flat.h"
#include "caravan/redistribute/redistribute.h"

namespace caravan {
namespace {

std::string describe(const at::Tensor& tensor, at::IntArrayRef shape) {
  const std::string dtype = tensor.defined() ? c10::toString(tensor.scalar_type()) : "not materialised";
  return fmt::format("{} [{}]", dtype, fmt::join(shape, ", "));
}

/// "dp=S tp=I": sizes of shards may depend on the rank.
std::string kinds_of(const Layout& layout) {
  std::string kinds;
  for (const auto& [axis, placement] : layout.entries()) {
    kinds += fmt::format("{}{}={}", kinds.empty() ? "" : " ", axis, placement.is_shard() ? "S" : placement.to_string());
  }
  return kinds;
}

/// "" for the rule of most parameters.
std::string text_of(const UpdateRule& rule) {
  if (rule == UpdateRule{}) return "";
  return fmt::format(", lr x {}, decay {}", rule.lr_factor,
                     rule.weight_decay ? fmt::format("{}", *rule.weight_decay) : "as usual");
}

/// Axes over which this parameter's gradient is reduced: on these the ranks may have had different values before.
std::vector<std::string> debt_axes(const ParameterLayouts& layouts, const Mesh& mesh) {
  std::vector<std::string> axes;
  for (const AxisMove& move : reduce_moves(layouts, mesh)) axes.push_back(move.axis);
  return axes;
}

void share(const at::Tensor& tensor, const std::vector<std::string>& axes, const Mesh& mesh, const Call& call) {
  if (tensor.numel() == 0) return;
  at::Tensor flat = tensor.detach().contiguous().view({-1});
  for (const std::string& axis : axes) {
    if (mesh[axis].size() > 1) start_copy_from(0, flat, mesh[axis], call).wait();
  }
  if (!tensor.is_meta() && flat.data_ptr() != tensor.data_ptr()) tensor.detach().copy_(flat.view(tensor.sizes()));
}

}  // namespace

void Engine::check_agreement() const {
  const UnshardedMemory memory = strategy_.unsharded_memory;
  std::vector<SharedFact> facts{
      {"strategy", strategy_.name},
      {"bucket_bytes", std::to_string(strategy_.bucket_bytes)},
      {"first_bucket_bytes", std::to_string(strategy_.first_bucket_bytes)},
      {"compute_dtype", c10::toString(strategy_.compute_dtype)},
      {"gradient_dtype", c10::toString(strategy_.gradient_dtype)},
      {"reduce_dtype", strategy_.reduce_dtype ? c10::toString(*strategy_.reduce_dtype) : "as kept"},
      {"hook", strategy_.hook == nullptr ? "none" : strategy_.hook->name() + " on " + strategy_.hook_axis},
      {"find_unused_parameters", strategy_.find_unused_parameters ? "true" : "false"},
      {"static_graph", strategy_.static_graph ? "true" : "false"},
      {"buffers", std::to_string(static_cast<int>(strategy_.buffers))},
      {"gathers", fmt::format("{} {} {} {} {} {}", memory == UnshardedMemory::shared,
                              strategy_.gathers.free_after_forward, strategy_.gathers.prefetch, keeps_unsharded(memory),
                              memory == UnshardedMemory::versions, strategy_.keeps_frozen)},
      {"gradients", fmt::format("{} {}", strategy_.reduces_each_micro_batch, strategy_.keeps_gradients)},
      {"offload",
       fmt::format("optimizer {}, parameters {}, gradients {}, activations {}, steps early {}, delayed after {}",
                   name(strategy_.optimizer_tier), name(strategy_.parameters_tier), name(strategy_.gradients_tier),
                   name(strategy_.activations_tier), strategy_.steps_early,
                   strategy_.delay_after ? std::to_string(*strategy_.delay_after) : "never")},
      {"chunks", fmt::format("{} of {} elements, {}, room for {} bytes, prefetch {}", strategy_.chunks.num_chunks,
                             strategy_.chunks.elems, name(strategy_.chunks.policy), strategy_.chunks.device_bytes,
                             strategy_.fetch_ahead)},
      {"layout of the loss", strategy_.loss_layout.to_string()},
      {"layout of the batch", strategy_.batch_layout.to_string()},
      {"dtype", c10::toString(options_.dtype)},
      {"initialise", options_.initialise ? "true" : "false"},
      {"seed", std::to_string(options_.seed)}};
  for (const Units::Unit& unit : state_.layout.units().units) {
    facts.push_back({"unit " + unit.name,
                     fmt::format("stage {}{}", unit.stage, unit.moves_activations ? ", moves activations" : "")});
  }
  const auto& recomputed = strategy_.recomputed;
  facts.push_back({"recompute", fmt::format("{} modules: {}", recomputed.size(), fmt::join(recomputed, " "))});
  for (const Parameter* parameter : model_.parameters()) {
    facts.push_back({parameter->name(), describe(parameter->sharded(), parameter->global_shape()) +
                                            (parameter->requires_grad() ? "" : ", frozen")});
    facts.push_back({parameter->name() + " sharded", kinds_of(layouts_of(strategy_, *parameter).sharded) +
                                                         (parameter->spec().decays ? "" : ", without decay") +
                                                         text_of(parameter->update_rule())});
  }
  for (const auto& [name, buffer] : model_.buffers()) facts.push_back({name, describe(buffer, buffer.sizes())});
  check_same_on_all_ranks(mesh_.world(), strategy_.name, facts, "parameters and options");
  for (const Parameter* parameter : model_.parameters()) {
    if (parameter->requires_grad()) parameter->check_no_sink();
  }
  for (const auto& [name, bytes] : {std::pair("bucket_bytes", strategy_.bucket_bytes),
                                    std::pair("first_bucket_bytes", strategy_.first_bucket_bytes)}) {
    if (bytes >= 1) continue;
    throw UsageError(
        {strategy_.name, name, fmt::format("{} bytes cannot hold a gradient", bytes), "", "use 1 or more"});
  }
  for (const Units::Group& group : state_.layout.units().groups) {
    if (strategy_.static_graph || !group.is_gathered) continue;
    throw UsageError({strategy_.name, "static_graph",
                      "every rank takes part in the gathers of '" + group.name +
                          "', so all run the units in one order, which may not change",
                      "", "leave static_graph true, or use ddp, which gathers nothing"});
  }
  check_dtypes();
  for (const Bucket& bucket : state_.layout.buckets()) {
    if (memory != UnshardedMemory::stashed || bucket.is_in_place()) continue;
    throw UsageError({strategy_.name, state_.layout.slots()[bucket.first_slot].parameter->name(),
                      "is gathered, but stages that step on their own keep versions of whole weights", mesh_.where(),
                      "use data parallelism that does not shard parameters, or a pipeline that flushes"});
  }
  if (strategy_.num_stages() > 1 && !strategy_.passes) {
    throw UsageError({strategy_.name, "passes", "a pipeline has no default order of its passes", "",
                      "set Strategy::passes, as add_pipeline does"});
  }
  for (const Parameter* parameter : model_.parameters()) {
    if (state_.layout.has(*parameter)) continue;
    throw UsageError(
        {strategy_.name, parameter->name(), "belongs to no unit", "", "name a unit whose module holds it"});
  }
}

void Engine::check_dtypes() const {
  const auto check = [&](const char* option, at::ScalarType type, bool has_half, const char* valid) {
    if (type == at::kFloat || type == at::kBFloat16 || (has_half && type == at::kHalf)) return;
    throw UsageError({strategy_.name, option, fmt::format("{} is not supported", c10::toString(type)), "", valid});
  };
  check("compute_dtype", strategy_.compute_dtype, true, "use fp32, bf16 or fp16");
  check("gradient_dtype", strategy_.gradient_dtype, false, "use fp32 or bf16");
  check("reduce_dtype", strategy_.reduce_dtype.value_or(at::kFloat), true, "use fp32, bf16 or fp16");
}

/// Moves the parameters into flat buffers, or creates them there.
void Engine::take_parameters() {
  const at::NoGradGuard no_grad;
  at::ScalarType dtype = options_.dtype;
  at::Device device = options_.device;
  const Parameter* first = nullptr;
  for (const Slot& slot : state_.layout.slots()) {
    const at::Tensor& rest = slot.parameter->sharded();
    if (!rest.defined()) continue;
    if (first == nullptr) {
      first = slot.parameter;
      dtype = rest.scalar_type();
      device = rest.device();
    }
    if (rest.scalar_type() == dtype && rest.device() == device) continue;
    throw UsageError({strategy_.name, slot.parameter->name(),
                      fmt::format("is {} on {}, but {} is {} on {}", c10::toString(rest.scalar_type()),
                                  rest.device().str(), first->name(), c10::toString(dtype), device.str()),
                      "", "give all sharded parameters one dtype on one device"});
  }
  if (dtype == at::kDouble && (strategy_.compute_dtype != at::kFloat || strategy_.gradient_dtype != at::kFloat)) {
    const bool is_leaf = strategy_.compute_dtype != at::kFloat;
    throw UsageError({strategy_.name, is_leaf ? "compute_dtype" : "gradient_dtype",
                      fmt::format("sharded parameters are fp64, but {} {}",
                                  is_leaf ? "layers compute in" : "their gradients are kept in",
                                  c10::toString(is_leaf ? strategy_.compute_dtype : strategy_.gradient_dtype)),
                      "", "make them fp32"});
  }
  if (strategy_.hook != nullptr) {
    const at::ScalarType kept = strategy_.gradient_dtype == at::kFloat ? dtype : strategy_.gradient_dtype;
    const std::string wrong = strategy_.hook->wrong_with(kept, strategy_.reduce_dtype.value_or(kept));
    if (!wrong.empty())
      throw UsageError({strategy_.name, "hook", strategy_.hook->name() + ": " + wrong, "", "use no hook"});
  }
  if (strategy_.is_offloaded() && strategy_.tiers == nullptr) {
    strategy_.tiers = make_tiers(strategy_, state_.layout, dtype, device);
  }
  state_.allocate(strategy_, mesh_, dtype, device);
  if (strategy_.hook != nullptr) strategy_.hook->prepare(state_.layout.trained_count(), state_.gradients.options());
  for (const Slot& slot : state_.layout.slots()) take_values(slot);
  share_values();
}

void Engine::take_values(const Slot& slot) {
  Parameter& parameter = *slot.parameter;
  if (!parameter.sharded().defined() && !options_.initialise) return;
  const ParameterLayouts& layouts = layouts_of(strategy_, parameter);
  // A copy where values rest on disk.
  const bool is_copy = state_.values.is_on_disk();
  at::Tensor piece =
      is_copy ? at::empty(slot.sharded_shape, state_.values.options()) : state_.layout.view(state_.values, parameter);
  const auto finish = [&] {
    if (is_copy) state_.values.write(slot.sharded_offset, piece);
  };
  if (!parameter.sharded().defined()) {
    if (!piece.is_meta() && piece.numel() > 0) {
      initialise(piece, parameter, local_boxes(parameter.global_shape(), layouts.sharded, mesh_, parameter.name()),
                 options_.seed);
      finish();
    }
    return;
  }
  const at::Tensor rest = parameter.sharded().detach();
  const Layout before = on_listed_axes(parameter.sharded_layout(), mesh_);
  if (before == layouts.sharded) {
    piece.copy_(rest);
    return finish();
  }
  std::vector<std::string> axes = debt_axes(layouts, mesh_);
  std::erase_if(axes, [&](const std::string& axis) {
    return before.has(axis) && before[axis].is_shard();
  });  // left by an earlier engine
  share(rest, axes, mesh_, parameter.name());
  piece.copy_(redistribute(rest, before, layouts.sharded, mesh_, parameter.name()));
  finish();
}

/// Sharded parameters that are I on data axes, and buffers, take the values of coordinate 0.
void Engine::share_values() {
  std::set<std::string> all;
  for (const Bucket& bucket : state_.layout.buckets()) {
    const Parameter& parameter = *state_.layout.slots()[bucket.first_slot].parameter;
    const std::vector<std::string> axes = debt_axes(layouts_of(strategy_, parameter), mesh_);
    all.insert(axes.begin(), axes.end());
    if (!parameter.sharded().defined() || !bucket.fill.empty()) continue;
    const at::Tensor values = state_.values.read(bucket.sharded_offset, bucket.sharded_count);
    share(values, axes, mesh_, "parameters");
    if (state_.values.is_on_disk()) state_.values.write(bucket.sharded_offset, values);
  }
  for (const auto& [name, buffer] : model_.buffers()) share(buffer, {all.begin(), all.end()}, mesh_, name);
}

}  // namespace caravan
