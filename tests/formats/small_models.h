#pragma once

#include "caravan/formats/huggingface/architectures/architecture_row.h"

namespace caravan::testing {

/// A model of the row with these sizes: heads of width 8 where they have norms, 4 experts, 2 for each token.
inline ModelConfig small_model(const ArchitectureRow& row, ModelConfig sizes) {
  set_architecture(sizes, row);
  if (row.name == "bloom") sizes.hidden = 0;  // which its config.json does not have
  if (row.base.has_encoder()) {
    sizes.encoder_layers = sizes.layers / 2;
    sizes.source_context = sizes.context;
    sizes.own_head_width = 6;
  }
  if (row.name == "bert") sizes.tie_embeddings = true;  // as transformers has it
  if (sizes.arch.qk_norm == QkNorm::head) sizes.own_head_width = 8;
  if (sizes.moe.is_used()) {
    sizes.moe.experts = 4;
    sizes.moe.top_k = 2;
  }
  if (sizes.moe.shared_gate) sizes.moe.shared_hidden = 12;
  return sizes;
}

}  // namespace caravan::testing
