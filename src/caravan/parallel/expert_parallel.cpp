#include "caravan/parallel/expert_parallel.h"

#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/error.h"
#include "caravan/nn/experts.h"

namespace caravan {
namespace {

Plan::Prepare takes_part(const MeshAxis& axis) {
  return [index = axis.coord(), parts = axis.size()](Module& module) {
    return dynamic_cast<Experts&>(module).take_part(index, parts);
  };
}

}  // namespace

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
  Plan::Row tables{.pattern = "*.mlp.experts", .prepare = takes_part(ranks), .around = exchange_tokens(ranks)};
  for (const std::string& name : expert_tables(config.kind)) tables.parameters.push_back({name, cut});
  return {.name = "expert_parallel",
          .axes = {axis},
          .data_axes = {axis},
          .rows = {{.pattern = "embedding", .inputs = {cut}},
                   {.pattern = "head.loss", .inputs = {std::nullopt, cut}},
                   {.pattern = "head.logits", .outputs = {Layout{{axis, Invariant{}}}}},
                   std::move(tables)}};
}

}  // namespace caravan
