#include "caravan/module/split_module.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include "caravan/base/error.h"
#include "caravan/base/numeric/random.h"
#include "caravan/global/global.h"
#include "caravan/global/state.h"

namespace caravan {
namespace {

/// Hands the gradient of a global leaf to the slot of its piece.
struct ToSlot : torch::autograd::PostAccumulateGradHook {
  explicit ToSlot(Parameter& slot_) : slot(slot_) {}
  void operator()(const torch::autograd::Variable& leaf) override {
    const at::Tensor gradient = std::exchange(leaf.mutable_grad(), at::Tensor());
    const PieceMeta& own = *meta_of(leaf);
    const at::AutoDispatchBelowADInplaceOrView below;
    const PieceMeta* meta = meta_of(gradient);
    const PieceMeta plain(gradient, own.state->whole(), own.state);
    slot.accumulate_grad(moved_piece(meta == nullptr ? plain : *meta, own.placed, "gradient of " + slot.name()));
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}
  Parameter& slot;
};

std::vector<std::string> axes_of(const std::vector<NamedLayout>& layouts, const Mesh& mesh) {
  std::vector<std::string> axes;
  for (const MeshAxis& axis : mesh.axes()) {
    const bool is_used = std::ranges::any_of(layouts, [&](const auto& each) { return each.layout.has(axis.name()); });
    if (is_used) axes.push_back(axis.name());
  }
  for (const NamedLayout& each : layouts) {
    for (const auto& [axis, placement] : each.layout.entries()) {
      if (is_absent_axis(mesh, axis)) continue;
      mesh[axis];  // throws, naming those that there are
      if (axis != "dp" && axis != "pp") continue;
      throw UsageError({"parallelize", "layout of \"" + each.pattern + "\"", "names axis " + axis, mesh.where(),
                        axis == "dp" ? "leave it to fsdp() or zero(), which shard parameters over dp"
                                     : "leave it to pipeline(), which places units on stages"});
    }
  }
  return axes;
}

}  // namespace

SplitModule::SplitModule(const std::vector<NamedLayout>& layouts, const Mesh& mesh)
    : mesh_(mesh), layouts_(layouts), context_(mesh, {.axes = axes_of(layouts, mesh)}) {}

SplitModule::~SplitModule() {
  for (const Split& each : split_) {
    if (each.has_hook) torch::autograd::impl::set_post_acc_grad_hooks(each.tensor, nullptr);
  }
}

void SplitModule::check_patterns(const torch::nn::Module& net) const {
  std::vector<std::string> names;
  for (const auto& item : net.named_parameters()) names.push_back(item.key());
  for (const auto& item : net.named_buffers()) {
    names.push_back(item.key());
    for (const auto& [axis, placement] : layout_for(item.key(), layouts_).entries()) {
      if (placement.is_whole()) continue;
      throw UsageError({"parallelize", "layout of \"" + item.key() + "\"", "shards a buffer, which stays whole here",
                        mesh_.where(), "give it no layout, or use distribute_module()"});
    }
  }
  check_layout_patterns(names, layouts_, mesh_, "parallelize");
}

Layout SplitModule::layout_of(const std::string& name, const at::Tensor& tensor) const {
  GlobalState& state = *context_.state();
  std::vector<Layout::Entry> entries;
  const Layout placed = state.placed(layout_for(name, layouts_), tensor.sizes().vec(), name)->layout;
  for (const auto& [axis, placement] : placed.entries()) {
    entries.emplace_back(axis, placement.is_replicate() ? Placement(Invariant{}) : placement);
  }
  return Layout(std::move(entries)).completed(mesh_, Invariant{});
}

at::Tensor SplitModule::piece_of_whole(const std::string& name, const at::Tensor& tensor) const {
  const at::NoGradGuard no_grad;
  return local(distributed(tensor.detach(), layout_for(name, layouts_), context_));
}

void SplitModule::put(const at::Tensor& piece, const Placed* placed, const at::Tensor& tensor) const {
  // set_data() refuses another device: a rehearsal computes on meta tensors.
  tensor.unsafeGetTensorImpl()->shallow_copy_from(
      wrap_piece(piece, tensor.sizes(), placed, context_.state()).getIntrusivePtr());
  meta_of(tensor)->is_parameter = true;
}

void SplitModule::add(Parameter& slot, const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  GlobalState& state = *context_.state();
  const Placed* placed = state.placed(layout_for(slot.name(), layouts_), tensor.sizes().vec(), slot.name());
  put(slot.unsharded(), placed, tensor);
  if (tensor.requires_grad()) torch::autograd::impl::set_post_acc_grad_hooks(tensor, std::make_unique<ToSlot>(slot));
  split_.push_back({&slot, tensor, tensor.requires_grad()});
}

void SplitModule::follow_dtypes() {
  const at::NoGradGuard no_grad;
  for (Split& each : split_) {
    const at::Tensor& piece = each.slot->unsharded();
    if (each.tensor.scalar_type() == piece.scalar_type() && each.tensor.device() == piece.device()) continue;
    put(piece, meta_of(each.tensor)->placed, each.tensor);
  }
}

uint64_t SplitModule::seed_of(const std::string& unit, const ForwardContext& context) const {
  std::string key = fmt::format("{} {}", unit, context.micro_batch);
  const std::vector<std::string>& own = context_.state()->axes();
  for (const MeshAxis& axis : mesh_.axes()) {
    const bool has_other_data = axis.name() != "pp" && std::ranges::find(own, axis.name()) == own.end();
    if (has_other_data) key += fmt::format(" {} {}", axis.name(), axis.coord());
  }
  const RandomStream stream(context.seed, key, context.step);
  return static_cast<uint64_t>(stream.bits(0)) << 32 | stream.bits(1);
}

std::vector<at::Tensor> SplitModule::run(const std::string& unit, const Forward& forward,
                                         const std::vector<at::Tensor>& inputs, const ForwardContext& context) {
  follow_dtypes();
  context_.state()->drawn() = {seed_of(unit, context), 0};
  std::vector<Layout::Entry> entries;
  for (const std::string& axis : context_.state()->axes()) entries.emplace_back(axis, Invariant{});
  const Layout invariant(std::move(entries));
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& input : inputs) {
    tensors.push_back(input.defined() ? global(input, invariant, context_) : input);
  }
  std::vector<at::Tensor> outputs = forward(std::move(tensors));
  for (at::Tensor& output : outputs) {
    if (is_global(output)) output = full(output);
  }
  return outputs;
}

}  // namespace caravan
