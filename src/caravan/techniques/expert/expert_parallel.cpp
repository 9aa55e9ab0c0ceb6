#include "caravan/techniques/expert/expert_parallel.h"

#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/error.h"
#include "caravan/techniques/tensor/model_rows.h"

namespace caravan {

Plan expert_parallel(const ModelConfig& config, const Mesh& mesh, const std::string& axis) {
  const MeshAxis ranks = mesh[axis];
  const int64_t experts = config.moe.experts;
  if (experts == 0) {
    throw UsageError({"expert parallel", axis, "the model has no experts to split", mesh.where(),
                      "set moe.experts, or leave the axis out"});
  }
  if (experts % ranks.size() != 0) {
    throw ShapeError({"expert parallel", "moe.experts",
                      fmt::format("{} experts do not divide among the {} ranks of {}", experts, ranks.size(), axis),
                      mesh.where(), "choose " + axis + " from " + divisors_near(experts, ranks.size())});
  }
  const Layout cut{{axis, Shard{0}}};
  Plan plan{.name = "expert_parallel", .axes = {axis}, .data_axes = {axis}, .rows = batch_rows(cut)};
  plan.rows.push_back({.pattern = "head.logits", .outputs = {Layout{{axis, Invariant{}}}}});
  plan.rows.push_back(expert_row(config, ranks, cut));
  plan.rows.back().around = exchange_tokens(ranks);
  for (Plan::Row& row : expert_adapter_rows(config, cut)) plan.rows.push_back(std::move(row));
  return plan;
}

}  // namespace caravan
