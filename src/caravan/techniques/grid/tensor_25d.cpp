#include "caravan/techniques/grid/tensor_25d.h"

#include "caravan/techniques/grid/tensor_2d.h"
#include "caravan/techniques/tensor/model_rows.h"

namespace caravan {

Plan tensor_25d(const ModelConfig& config, const MeshAxis& depth, const MeshAxis& row, const MeshAxis& col) {
  const Layout rows{{depth.name(), Shard{0}}};
  const Layout whole{{depth.name(), Invariant{}}};
  Plan batch{.name = "", .axes = {depth.name()}, .data_axes = {depth.name()}, .rows = batch_rows(rows)};
  batch.rows.push_back({.pattern = "head.logits", .outputs = {whole}});
  Plan plan = join(batch, tensor_2d(config, row, col));
  plan.name = "tensor_25d";
  return plan;
}

}  // namespace caravan
