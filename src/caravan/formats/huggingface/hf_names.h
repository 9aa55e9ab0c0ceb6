#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/formats/huggingface/hf_rows.h"
#include "caravan/nn/config.h"

namespace caravan {

/// What tensors under the names of parameters are: an offset between ours and theirs is one of values alone.
enum class TensorKind : uint8_t { values, gradients };

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// The shapes of the parameters of Model.
TensorShapes our_shapes(const ModelConfig& config);

/// Converts whole tensors of a Model from our names to the names and shapes of Hugging Face's transformers (GPT-2's
/// matrices transposed, its query, key and value fused into c_attn; each expert's matrices as separate tensors), in
/// forward order. A tied head has no tensor. The names are those of files: transformers 5 fuses experts in memory.
///
/// Works for parameters, and as gradients for gradients and moments, of any dtype and for meta tensors. Tensors that
/// keep their shape, and experts, share the memory of ours; others are new and contiguous.
/// Throws DataError listing tensors that are missing, unexpected, or of a different shape; UsageError for a model that
/// transformers does not have (architecture_of).
NamedTensors to_huggingface(const ModelConfig& config, const NamedTensors& ours, TensorKind kind = TensorKind::values);

/// The inverse, in the order of Model::parameters(). `theirs` may lack the prefix `transformer.` or `model.`, include
/// tensors that are not parameters (causal masks, rotary frequencies), and repeat the tied head.
/// Throws DataError as above, and for a tied head that differs from the embedding.
NamedTensors from_huggingface(const ModelConfig& config, const NamedTensors& theirs);

}  // namespace caravan
