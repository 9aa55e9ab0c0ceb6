#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/nn/config.h"

namespace caravan {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Whole tensors of a Model under our names, as Hugging Face's transformers names and shapes them (GPT-2's matrices
/// transposed, its query, key and value fused into c_attn), in forward order. A tied head has no tensor of its own.
///
/// Linear in the tensors: parameters, gradients and moments alike, any dtype, meta too. Tensors that keep their shape
/// are passed on as they are; others are new and contiguous.
/// Throws DataError listing what is missing, what the model does not have, and what has another shape.
NamedTensors to_huggingface(const ModelConfig& config, const NamedTensors& ours);

/// The inverse. `theirs` may lack the prefix `transformer.` or `model.`, and may hold what is no parameter (causal
/// masks, rotary frequencies) or repeat the tied head; the tensors come in the order of Model::parameters().
/// Throws DataError as above, and for a tied head that differs from the embedding.
NamedTensors from_huggingface(const ModelConfig& config, const NamedTensors& theirs);

}  // namespace caravan
