#include "caravan/techniques/split_model.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/nn/model.h"
#include "caravan/parallel/context_parallel.h"
#include "caravan/parallel/expert_parallel.h"
#include "caravan/parallel/tensor_1d.h"
#include "caravan/parallel/tensor_25d.h"
#include "caravan/parallel/tensor_2d.h"
#include "caravan/parallel/tensor_3d.h"

namespace caravan {

namespace {

/// Splits the axis tp into those of a grid.
Plan tensor_plan(const TensorParallelChoice& choice, const ModelConfig& config, Mesh& mesh) {
  if (choice.kind == "1d") return tensor_1d(config, mesh, {.axis = "tp", .sequence = choice.sequence});
  if (const auto misfit = choice.misfit(config)) {
    throw UsageError({"strategy", misfit->key, misfit->fact, mesh.where(), misfit->action});
  }
  const auto side = static_cast<int>(choice.side());
  if (choice.kind == "2d") {
    mesh = mesh.factor("tp", {{"row", side}, {"col", side}});
    return tensor_2d(config, mesh["row"], mesh["col"]);
  }
  if (choice.kind == "2.5d") {
    mesh = mesh.factor("tp", {{"depth", static_cast<int>(choice.depth)}, {"row", side}, {"col", side}});
    return tensor_25d(config, mesh["depth"], mesh["row"], mesh["col"]);
  }
  if (choice.kind == "3d") {
    mesh = mesh.factor("tp", {{"a", side}, {"b", side}, {"c", side}});
    return tensor_3d(config, mesh["a"], mesh["b"], mesh["c"]);
  }
  throw UsageError({"strategy", "tensor_parallel", "'" + choice.kind + "' is not one of " + join(tensor_kinds()), "",
                    "use '" + nearest(choice.kind, tensor_kinds()) + "'"});
}

/// The axes of the choice: cp itself, or two parts of it.
ContextParallelOptions context_options(const ContextParallelChoice& choice, const TensorParallelChoice& tensor,
                                       Mesh& mesh) {
  ContextParallelOptions options{.head_parts = tensor.head_parts(),
                                 .stream_parts = tensor.is_used() && tensor.sequence ? tensor.degree : 1};
  if (choice.has_both()) {
    options.ring = "cp_ring";
    options.ulysses = "cp_ulysses";
    mesh = mesh.factor("cp", {{options.ring, static_cast<int>(choice.num_ring())},
                              {options.ulysses, static_cast<int>(choice.num_ulysses())}});
    return options;
  }
  if (std::ranges::find(context_kinds(), choice.kind) == context_kinds().end()) {
    throw UsageError({"strategy", "context_parallel", "'" + choice.kind + "' is not one of " + join(context_kinds()),
                      "", "use '" + nearest(choice.kind, context_kinds()) + "'"});
  }
  (choice.kind == "ring" ? options.ring : options.ulysses) = "cp";
  return options;
}

}  // namespace

Strategy split_model(const StrategyChoice& choice, Module& module, Mesh& mesh) {
  mesh.deferred().set_overlaps(choice.overlap);
  const bool splits_experts = choice.expert_parallel.is_used();
  if (!choice.tensor_parallel.is_used() && !choice.context_parallel.is_used() && !splits_experts) {
    return whole_model(module, mesh);
  }
  const auto* model = dynamic_cast<const Model*>(&module);
  if (model == nullptr) {
    throw UsageError({"strategy", "model", "only models of this library have a table of how to split their layers",
                      mesh.where(), "write a Plan for it (module/plan.h)"});
  }
  if (const auto misfit = choice.expert_parallel.misfit(model->config(), choice.tensor_parallel)) {
    throw UsageError({"strategy", misfit->key, misfit->fact, mesh.where(), misfit->action});
  }
  // All axes are there before a plan keeps the mesh; sequences are split over those of the context first.
  const bool splits_context = choice.context_parallel.is_used();
  ContextParallelOptions context;
  if (splits_context) context = context_options(choice.context_parallel, choice.tensor_parallel, mesh);
  Plan plan;
  if (choice.tensor_parallel.is_used()) plan = tensor_plan(choice.tensor_parallel, model->config(), mesh);
  if (splits_context) plan = join(context_parallel(model->config(), mesh, context), plan);
  if (splits_experts) plan = join(expert_parallel(model->config(), mesh, "ep"), plan);
  const std::vector<int64_t> ids{choice.sequences, model->config().context};
  Strategy strategy = whole_model(module, mesh);
  add_plan(strategy, std::make_shared<AppliedPlan>(apply(plan, module, mesh, {ids, ids}, {ids})));
  return strategy;
}

}  // namespace caravan
