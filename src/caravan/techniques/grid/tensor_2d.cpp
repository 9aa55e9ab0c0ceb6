#include "caravan/techniques/grid/tensor_2d.h"

#include "caravan/techniques/grid/summa.h"
#include "caravan/techniques/tensor/model_rows.h"

namespace caravan {

Plan tensor_2d(const ModelConfig& config, const MeshAxis& row, const MeshAxis& col) {
  check_grid("tensor_2d", {}, config, {row, col});
  const std::string& r = row.name();
  const std::string& c = col.name();
  Plan plan{.name = "tensor_2d", .axes = {r, c}};
  const GridLinear linear{.weight = {{c, Shard{0}}, {r, Shard{1}}},
                          .bias = {{c, Shard{0}}},
                          .bias_leaf = {{c, Shard{0}}, {r, Replicate{}}},
                          .product = summa_product(row, col)};
  add_linears(plan, config, linear, linear);
  add_norms(plan, config, col, {r});
  const Layout whole_table{{r, Replicate{}}};
  add_words(plan, config, col,
            {.table = {shard_of(col, 0, config.vocabulary).entries().front(), {r, Shard{1}}},
             .token_compute = whole_table,
             .head_compute = whole_table,
             .ids = {{r, Shard{0}}},
             .stream = {{c, Shard{2}}},
             .hidden = {{c, Replicate{}}},
             .labels = {{r, Shard{0}}},
             .logits = {{r, Invariant{}}, {c, Invariant{}}}});
  return plan;
}

}  // namespace caravan
