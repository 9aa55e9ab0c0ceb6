#include "caravan/techniques/split_model.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "caravan/base/error.h"
#include "caravan/models/model.h"
#include "caravan/registry/registry.h"
#include "caravan/techniques/technique_body.h"

namespace caravan {
namespace {

/// A split, and the number of parts into which earlier splits have cut the model.
struct Part {
  const Split& split;
  SplitParts others;
};

/// Later entries split sequences and experts first.
std::vector<Part> splits_of(const StrategyChoice& choice) {
  std::vector<Part> parts;
  SplitParts others;
  for (const Split* split : {&choice.tensor_parallel, &choice.context_parallel, &choice.expert_parallel}) {
    parts.push_back({*split, others});
    others = others * split->parts();
  }
  return parts;
}

void lay_out_axis(const Part& part, const ModelConfig& config, Mesh& mesh) {
  const Setting& kind = part.split.kind;
  if (const auto misfit = part.split.misfit(config, part.others)) {
    throw UsageError({"strategy", misfit->key, misfit->fact, mesh.where(), misfit->action});
  }
  if (!part.split.is_used()) return;
  const std::vector<AxisSize> factors = kind.entry().factors(kind, part.split.degree);
  if (!factors.empty()) mesh = mesh.factor(std::string(kind.family().axis), factors);
}

}  // namespace

Strategy split_model(const StrategyChoice& choice, Module& module, Mesh& mesh) {
  mesh.deferred().set_overlaps(choice.overlap);
  const std::vector<Part> parts = splits_of(choice);
  if (std::ranges::none_of(parts, [](const Part& part) { return part.split.is_used(); })) {
    return whole_model(module, mesh);
  }
  const auto* model = dynamic_cast<const Model*>(&module);
  if (model == nullptr) {
    throw UsageError(
        {"strategy", "model", "only models of this library have a table of how to split their layers", mesh.where(),
         "add tensor(layouts) for a torch::nn module, make the session without this axis, or write a Plan for it "
         "(module/plan/plan.h)"});
  }
  const ModelConfig& config = model->config();
  // All axes must exist before a plan keeps the mesh.
  for (const Part& part : parts) lay_out_axis(part, config, mesh);
  Plan plan;
  for (const Part& part : parts) {
    if (part.split.is_used()) plan = join(plan_of(part.split.kind, {config, mesh, part.others}), plan);
  }
  const std::vector<int64_t> ids{choice.sequences, config.row_length()};
  Strategy strategy = whole_model(module, mesh);
  add_plan(strategy, std::make_shared<AppliedPlan>(apply(plan, module, mesh, {ids, ids}, {ids})));
  return strategy;
}

}  // namespace caravan
