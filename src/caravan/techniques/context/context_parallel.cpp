#include "caravan/techniques/context/context_parallel.h"

#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/error.h"
#include "caravan/module/plan/layout_table.h"
#include "caravan/nn/experts/router.h"
#include "caravan/techniques/context/ring_attention.h"
#include "caravan/techniques/data/axis_reduction.h"
#include "caravan/techniques/tensor/kv_heads.h"
#include "caravan/techniques/tensor/model_rows.h"

namespace caravan {
namespace {

/// Around the model, or a stage of a pipeline: whole ids and labels, {stream} that is already cut, or {stream, labels}.
class DealOut {
 public:
  /// `parts`: into which the sequences of the stream are cut.
  DealOut(RingOrder order, int num_ring, int64_t parts)
      : order_(std::move(order)), num_ring_(num_ring), parts_(parts) {}

  Tensors operator()(Module& /*model*/, Tensors inputs, const ForwardContext& context, const Next& next) const {
    if (context.phase == Phase::generate || num_ring_ == 1) return next(std::move(inputs), context);
    ForwardContext here = context;
    const int64_t length = length_of(inputs);
    const DimIndex order = order_.tokens(length, num_ring_);
    const at::Tensor slots = order.indices(length).to(inputs.at(0).device());
    for (at::Tensor& input : inputs) {
      if (!is_whole(input)) continue;
      const at::Tensor given = std::exchange(input, input.index_select(1, slots));
      if (context.layouts == nullptr) continue;
      context.layouts->set(input, context.layouts->of(given, "the order of a ring"), context.layouts->origin(given));
    }
    here.set(Dim::sequence, order);
    here.positions =
        context.positions.defined() ? context.positions.index_select(context.positions.dim() - 1, slots) : slots;
    if (context.documents.defined()) here.documents = context.documents.index_select(1, slots);
    if (context.token_types.defined()) here.token_types = context.token_types.index_select(1, slots);
    return next(std::move(inputs), here);
  }

 private:
  static bool is_whole(const at::Tensor& input) { return input.scalar_type() == at::kLong; }
  int64_t length_of(const Tensors& inputs) const {
    const at::Tensor& first = inputs.at(0);
    return first.size(1) * (is_whole(first) ? 1 : parts_);
  }

  RingOrder order_;
  int num_ring_;
  int64_t parts_;
};

/// Reduces over several axes, one after another.
class AxesReduction final : public RowReduction {
 public:
  AxesReduction(const Mesh& mesh, const std::vector<std::string>& axes) {
    for (const std::string& axis : axes) each_.push_back(axis_reduction(mesh[axis], Replicate{}));
  }
  void max(at::Tensor& rows) override {
    for (const auto& each : each_) each->max(rows);
  }
  void sum(at::Tensor& rows) override {
    for (const auto& each : each_) each->sum(rows);
  }
  Layout reduced(const Layout& summands) const override {
    Layout layout = summands;
    for (const auto& each : each_) layout = each->reduced(layout);
    return layout;
  }

 private:
  std::vector<std::shared_ptr<RowReduction>> each_;
};

/// Routers count the choices of the tokens of a whole sequence.
Plan::Row counting_row(const Mesh& mesh, const std::vector<std::string>& axes) {
  return {
      .pattern = "*.mlp.router",
      .prepare = [reduction = std::make_shared<AxesReduction>(mesh, axes)](Module& module) -> std::function<void()> {
        auto& router = dynamic_cast<Router&>(module);
        router.set_row_reduction(reduction);
        return [&router] { router.set_row_reduction(nullptr); };
      }};
}

void check_heads(int64_t heads, const MeshAxis& ulysses) {
  if (heads % ulysses.size() == 0) return;
  throw ShapeError(
      {"context parallel", "model.heads",
       fmt::format("{} heads do not divide among the {} ranks of {}", heads, ulysses.size(), ulysses.name()),
       ulysses.where(),
       "choose " + ulysses.name() + " from " + divisors_near(heads, ulysses.size()) +
           ", or pass keys and values around a ring"});
}

void check_length(const ModelConfig& config, int64_t chunks, const Mesh& mesh) {
  if (config.context % chunks == 0) return;
  throw ShapeError({"context parallel", "model.context",
                    fmt::format("a sequence of {} tokens does not split into {} equal chunks", config.context, chunks),
                    mesh.where(), "use a context of " + multiples_near(config.context, chunks)});
}

Plan::Row exchange_row(const ModelConfig& config, const Mesh& mesh, const ContextParallelOptions& options) {
  const std::string& axis = options.ulysses;
  const Layout heads{{axis, Shard{2}}};
  const bool has_equal = config.num_kv_heads() % (options.head_parts * mesh[axis].size()) == 0;
  const Layout of_keys = has_equal ? heads : Layout{{axis, Replicate{}}};
  return {.pattern = "*.attention.core", .inputs = {heads, of_keys, of_keys}, .outputs = {Layout{{axis, Shard{1}}}}};
}

}  // namespace

Plan context_parallel(const ModelConfig& config, const Mesh& mesh, const ContextParallelOptions& options) {
  Plan plan{.name = "context_parallel"};
  for (const std::string& axis : {options.ring, options.ulysses}) {
    if (!axis.empty()) plan.axes.push_back(axis);
  }
  if (plan.axes.empty() || options.ring == options.ulysses) {
    throw UsageError({"context parallel", "axes", "needs an axis for the ring, one for Ulysses, or two different ones",
                      mesh.where(), "name an axis of the mesh"});
  }
  plan.data_axes = plan.axes;
  const int num_ring = options.ring.empty() ? 1 : mesh[options.ring].size();
  const int64_t parts = num_ring * int64_t{options.ulysses.empty() ? 1 : mesh[options.ulysses].size()};
  if (!options.ulysses.empty()) check_heads(config.heads / options.head_parts, mesh[options.ulysses]);
  check_length(config, (num_ring > 1 ? options.ring_order.pieces : 1) * parts, mesh);

  std::vector<Layout::Entry> cut;
  for (const std::string& axis : plan.axes) cut.emplace_back(axis, Shard{1});
  plan.rows = batch_rows(Layout(cut));
  if (config.moe.is_used()) plan.rows.push_back(counting_row(mesh, plan.axes));
  if (!options.ulysses.empty()) plan.rows.push_back(exchange_row(config, mesh, options));
  // For this plan or a joined one: each rank takes its heads before they go around the ring.
  plan.rows.push_back({.pattern = "*.attention.core", .around = kv_heads(mesh)});
  if (!options.ring.empty()) {
    plan.rows.push_back({.pattern = "", .around = DealOut(options.ring_order, num_ring, parts * options.stream_parts)});
    plan.rows.push_back({.pattern = "*.attention.core",
                         .around = ring_attention(mesh[options.ring], options.ring_schedule, options.ring_order)});
  }
  return plan;
}

}  // namespace caravan
