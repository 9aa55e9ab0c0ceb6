#include <algorithm>
#include <string_view>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <c10/core/AutogradState.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "caravan/base/error.h"
#include "caravan/global/dispatch.h"
#include "caravan/global/global.h"
#include "caravan/global/leaf_gradients.h"
#include "caravan/global/plain_check.h"
#include "caravan/global/roots.h"
#include "caravan/global/state.h"
#include "caravan/mesh/fit.h"
#include "caravan/redistribute/redistribute.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const PieceMeta& checked_meta(const at::Tensor& tensor, const char* function) {
  if (PieceMeta* meta = tensor.defined() ? meta_of(tensor) : nullptr) {
    if (meta->root.axes != 0) take_root(*meta);
    return *meta;
  }
  throw UsageError(
      {function,
       tensor.defined() ? "tensor " + shape_text(tensor.sizes().data(), tensor.sizes().size()) : "an undefined tensor",
       "is not a global tensor", "", "make it one with distribute() or global()"});
}

/// What a function of the autograd graph keeps.
struct Kept : torch::CustomClassHolder {
  Kept(std::shared_ptr<GlobalState> state_, const Placed* placed_, std::vector<int64_t> sizes_ = {})
      : state(std::move(state_)), placed(placed_), sizes(std::move(sizes_)) {}
  std::shared_ptr<GlobalState> state;
  const Placed* placed;
  std::vector<int64_t> sizes;
};
using KeptPtr = c10::intrusive_ptr<Kept>;

const Kept& kept(AutogradContext* context, const char* name) {
  const auto holder = context->saved_data[name].toCapsule();
  return static_cast<const Kept&>(*holder);
}

at::Tensor moved(const at::Tensor& tensor, const Placed* to, std::string_view what) {
  const PieceMeta& meta = *meta_of(tensor);
  if (meta.placed == to) return tensor;
  const at::AutoDispatchBelowADInplaceOrView below;
  at::Tensor piece = moved_piece(meta, to, what);
  if (piece.is_alias_of(meta.piece)) piece = piece.clone(at::MemoryFormat::Contiguous);
  if (!to->is_even) piece = piece.contiguous();
  return wrap_piece(piece, tensor.sizes(), to, meta.state);
}

/// The layout to which a gradient that lies as `now` is brought for a tensor that lies as `placed`: rows are scattered,
/// sums are taken for a partial tensor; for a whole one it stays as it comes, or is summed if `sums`.
const Placed* gradient_layout(const Placed& placed, const Layout& now, bool sums, GlobalState& state) {
  std::vector<Layout::Entry> entries;
  for (const auto& [axis, placement] : placed.layout.entries()) {
    if (placement.is_shard()) entries.emplace_back(axis, placement);
  }
  for (const auto& [axis, placement] : now.entries()) {
    const Placement& own = placed.layout[axis];
    if (own.is_shard()) continue;
    const bool is_summed = own.is_partial() || (sums && placement.is_partial());
    entries.emplace_back(axis, is_summed ? Placement(Replicate{}) : placement);
  }
  return state.intern(Layout(std::move(entries)));
}

at::Tensor as_global(const at::Tensor& gradient, const Kept& kept) {
  if (is_global(gradient)) return gradient;
  return wrap_piece(gradient, gradient.sizes(), kept.state->whole(), kept.state);
}

/// Whether a backward function is part of a graph itself.
bool is_differentiated_again(const at::Tensor& gradient) {
  return at::GradMode::is_enabled() && gradient.requires_grad();
}

struct Redistribution : torch::autograd::Function<Redistribution> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor, const KeptPtr& to, bool constrains,
                            const std::string& what) {
    const PieceMeta& meta = *meta_of(tensor);
    context->saved_data["from"] = c10::IValue::make_capsule(c10::make_intrusive<Kept>(meta.state, meta.placed));
    context->saved_data["to"] = c10::IValue::make_capsule(to);
    context->saved_data["constrains"] = constrains;
    const at::Tensor result = moved(tensor, to->placed, what);
    return result.is_same(tensor) ? tensor.view_as(tensor) : result;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Kept& from = kept(context, "from");
    at::Tensor gradient = as_global(gradients[0], from);
    const auto bring = [&](const Kept& like, bool sums) {
      const Placed* to = gradient_layout(*like.placed, meta_of(gradient)->placed->layout, sums, *like.state);
      gradient = is_differentiated_again(gradient)
                     ? Redistribution::apply(gradient, c10::make_intrusive<Kept>(like.state, to), false, "gradient")
                     : moved(gradient, to, "gradient of redistribute");
    };
    if (context->saved_data["constrains"].toBool()) bring(kept(context, "to"), true);
    bring(from, false);
    return {gradient, {}, {}, {}};
  }
};

/// Both know the layout of the tensor and that of its gradient: each is the other's derivative, with these swapped.
struct Local : torch::autograd::Function<Local> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor, const KeptPtr& own,
                            const KeptPtr& gradient) {
    context->saved_data["own"] = c10::IValue::make_capsule(own);
    context->saved_data["gradient"] = c10::IValue::make_capsule(gradient);
    return meta_of(tensor)->piece.detach();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients);
};

struct FromPiece : torch::autograd::Function<FromPiece> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& piece, const KeptPtr& own,
                            const KeptPtr& gradient) {
    context->saved_data["own"] = c10::IValue::make_capsule(own);
    context->saved_data["gradient"] = c10::IValue::make_capsule(gradient);
    at::Tensor result = wrap_piece(piece.detach(), own->sizes, own->placed, own->state);
    meta_of(result)->is_aliased = true;
    return result;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients);
};

KeptPtr pointer(const Kept& kept) { return c10::make_intrusive<Kept>(kept.state, kept.placed, kept.sizes); }

variable_list Local::backward(AutogradContext* context, const variable_list& gradients) {
  const Kept& of = kept(context, "gradient");
  if (is_differentiated_again(gradients[0])) {
    return {FromPiece::apply(gradients[0], pointer(of), pointer(kept(context, "own"))), {}, {}};
  }
  // Another leaf may get the same gradient, and each is written by itself.
  const at::Tensor own = gradients[0].use_count() > 1 ? gradients[0].clone() : gradients[0];
  return {wrap_piece(own, of.sizes, of.placed, of.state), {}, {}};
}

variable_list FromPiece::backward(AutogradContext* context, const variable_list& gradients) {
  const Kept& of = kept(context, "gradient");
  at::Tensor gradient = as_global(gradients[0], of);
  if (is_differentiated_again(gradient)) {
    gradient = Redistribution::apply(gradient, pointer(of), false, "gradient");
    return {Local::apply(gradient, pointer(of), pointer(kept(context, "own"))), {}, {}};
  }
  return {meta_of(moved(gradient, of.placed, "gradient of a piece"))->piece, {}, {}};
}

/// The layout of the gradient of a piece: that of copies which ranks use in different ways is a sum.
Layout dual_layout(const Layout& layout, const std::vector<std::string>& invariant) {
  std::vector<Layout::Entry> entries;
  for (const auto& [axis, placement] : layout.entries()) {
    const bool is_same = std::find(invariant.begin(), invariant.end(), axis) != invariant.end();
    entries.emplace_back(axis, placement.is_replicate() && is_same ? placement : dual(placement));
  }
  return Layout(std::move(entries));
}

at::Tensor redistributed(const at::Tensor& tensor, const Layout& layout, const char* function, bool constrains) {
  const PieceMeta& meta = checked_meta(tensor, function);
  const Placed* to = meta.state->placed(layout, tensor.sizes().vec(), function);
  if (meta.placed == to && !constrains) return tensor;
  return Redistribution::apply(tensor, c10::make_intrusive<Kept>(meta.state, to), constrains, function);
}

std::vector<std::string> axes_with(const Layout& layout, bool (*is)(const Placement&)) {
  std::vector<std::string> axes;
  for (const auto& [axis, placement] : layout.entries()) {
    if (is(placement)) axes.push_back(axis);
  }
  return axes;
}

}  // namespace

GlobalContext::GlobalContext(const Mesh& mesh, const GlobalOptions& options) {
  register_dispatch();
  // Views are replayed by what made them: as_strided has no meaning for a tensor in pieces.
  c10::AutogradState::get_tls_state().set_view_replay_enabled(true);
  state_ = std::make_shared<GlobalState>(mesh, options);
}

const Mesh& GlobalContext::mesh() const noexcept { return state_->mesh(); }
std::vector<WholeOp> GlobalContext::whole_ops() const { return state_->whole_ops(); }
std::string GlobalContext::report() const { return state_->report(); }
void GlobalContext::clear_report() const { state_->clear_report(); }

bool is_global(const at::Tensor& tensor) noexcept { return tensor.defined() && meta_of(tensor) != nullptr; }

const Layout& layout(const at::Tensor& tensor) { return checked_meta(tensor, "layout").placed->layout; }

at::Tensor distribute(const at::Tensor& whole, const Layout& layout, const GlobalContext& context) {
  if (!is_global(whole) && whole.defined() && !whole.is_meta() && context.state()->compares_next()) {
    check_same_plain(whole, "distribute", *context.state());
  }
  return distributed(whole, layout, context);
}

at::Tensor distributed(const at::Tensor& whole, const Layout& layout, const GlobalContext& context) {
  if (is_global(whole)) {
    throw UsageError({"distribute", shape_text(whole.sizes().data(), whole.sizes().size()),
                      "is a global tensor already", context.mesh().where(), "move it with redistribute()"});
  }
  if (whole.grad_fn() != nullptr) {
    throw UsageError({"distribute", shape_text(whole.sizes().data(), whole.sizes().size()),
                      "was computed from tensors that require a gradient", context.mesh().where(),
                      "use redistribute(global(x, {}, context), layout), which is differentiable, or detach it"});
  }
  GlobalState& state = *context.state();
  const Placed* placed = state.placed(layout, whole.sizes().vec(), "distribute");
  const at::NoGradGuard no_grad;
  const PieceMeta all(whole.detach(), state.whole(), context.state());
  at::Tensor piece = moved_piece(all, placed, "distribute");
  // A slice would keep the memory of the whole tensor.
  piece = piece.is_alias_of(whole) ? piece.clone(at::MemoryFormat::Contiguous) : piece;
  at::Tensor result = wrap_piece(piece, whole.sizes(), placed, context.state());
  if (whole.requires_grad()) {
    result.set_requires_grad(true);
    meta_of(result)->is_parameter = true;
    LeafGradients::watch(result);
  }
  return result;
}

at::Tensor global(const at::Tensor& piece, const Layout& layout, const GlobalContext& context) {
  if (is_global(piece)) {
    throw UsageError({"global", shape_text(piece.sizes().data(), piece.sizes().size()), "is a global tensor already",
                      context.mesh().where(), "move it with redistribute()"});
  }
  GlobalState& state = *context.state();
  const Layout complete = agreed_layout(piece, layout, state);
  const std::vector<int64_t> sizes = global_shape(piece.sizes().vec(), complete, context.mesh(), "global");
  const Placed* placed = state.placed(complete, sizes, "global");
  const auto invariant = axes_with(complete, [](const Placement& placement) { return placement.is_invariant(); });
  const Placed* gradient = state.intern(dual_layout(placed->layout, invariant));
  return FromPiece::apply(piece, c10::make_intrusive<Kept>(context.state(), placed, sizes),
                          c10::make_intrusive<Kept>(context.state(), gradient, sizes));
}

at::Tensor local(const at::Tensor& tensor, const std::vector<std::string>& invariant) {
  const PieceMeta& meta = checked_meta(tensor, "local");
  meta.state->check_axes(invariant, "local");
  const Placed* gradient = meta.state->intern(dual_layout(meta.placed->layout, invariant));
  const std::vector<int64_t> sizes = tensor.sizes().vec();
  return Local::apply(tensor, c10::make_intrusive<Kept>(meta.state, meta.placed, sizes),
                      c10::make_intrusive<Kept>(meta.state, gradient, sizes));
}

at::Tensor full(const at::Tensor& tensor) {
  const PieceMeta& meta = checked_meta(tensor, "full");
  return local(redistributed(tensor, meta.state->whole()->layout, "full", false), meta.state->axes());
}

at::Tensor redistribute(const at::Tensor& tensor, const Layout& layout) {
  return redistributed(tensor, layout, "redistribute", false);
}

at::Tensor constrain(const at::Tensor& tensor, const Layout& layout) {
  return redistributed(tensor, layout, "constrain", true);
}

std::vector<at::Tensor> local_map(
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& function,
    const std::vector<at::Tensor>& inputs, const std::vector<Layout>& in, const std::vector<Layout>& out,
    const GlobalContext& context) {
  if (inputs.size() != in.size()) {
    throw UsageError({"local_map", fmt::format("{} inputs", inputs.size()),
                      fmt::format("{} layouts are given for them", in.size()), context.mesh().where(),
                      "give a layout for each input"});
  }
  std::vector<at::Tensor> pieces;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Layout complete = context.state()->completed(in[i]);
    const auto invariant = axes_with(complete, [](const Placement& placement) { return placement.is_invariant(); });
    pieces.push_back(local(redistributed(inputs[i], complete, "local_map", false), invariant));
  }
  std::vector<at::Tensor> results = function(pieces);
  if (results.size() != out.size()) {
    throw UsageError({"local_map", fmt::format("{} results", results.size()),
                      fmt::format("{} layouts are given for them", out.size()), context.mesh().where(),
                      "give a layout for each result"});
  }
  for (size_t i = 0; i < results.size(); ++i) results[i] = global(results[i], out[i], context);
  return results;
}

}  // namespace caravan
