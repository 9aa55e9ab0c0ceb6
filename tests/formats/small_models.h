#pragma once

#include "caravan/formats/huggingface/architectures/architecture_row.h"

namespace caravan::testing {

/// A model of the row with these sizes: heads of width 8 where they have norms, 4 experts, 2 for each token.
inline ModelConfig small_model(const ArchitectureRow& row, ModelConfig sizes) {
  set_architecture(sizes, row);
  if (row.name == "bloom") sizes.hidden = 0;  // which its config.json does not have
  if (sizes.arch.qk_norm == QkNorm::head) sizes.own_head_width = 8;
  if (sizes.moe.is_used()) {
    sizes.moe.experts = 4;
    sizes.moe.top_k = 2;
  }
  if (sizes.moe.shared_gate) sizes.moe.shared_hidden = 12;
  return sizes;
}

}  // namespace caravan::testing
