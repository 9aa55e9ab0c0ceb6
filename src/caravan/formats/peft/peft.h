#pragma once

#include <filesystem>
#include <string>

#include "caravan/formats/huggingface/hf_names.h"
#include "caravan/formats/peft/peft_config.h"

namespace caravan {

/// The adapters of a model in PEFT's names and shapes: A [rank, in], B [out, rank]. GPT-2's query, key and value, which
/// PEFT fuses, become one adapter with the ranks of all three. What is trained whole goes with them. `ours`: whole, may
/// hold other parameters too; values have the weights of fused layers of which only a part has magnitudes. Gradients of
/// an embedding and a head that are one table are their sum.
NamedTensors to_peft(const ModelConfig& config, const NamedTensors& ours, TensorKind kind = TensorKind::values);

/// Reads a folder that PEFT wrote, whole and in fp32, under Caravan's names, in the order of Model::parameters(); for a
/// model with the adapters of read_peft_config. A smaller rank is padded with zeros, another scale becomes a factor of
/// B, and a fused adapter becomes an adapter of its rank for each part. Magnitudes and what is saved whole are read
/// too. Throws DataError as read_peft_config, and for a shape that does not fit or a value that is not finite.
NamedTensors read_peft(const std::filesystem::path& folder, const ModelConfig& config);

/// Writes a folder that PEFT loads. `base_model`: the location of the base model, for PEFT. Throws ResourceError, and
/// UsageError for a model that transformers does not have.
void write_peft(const std::filesystem::path& folder, const ModelConfig& config, const NamedTensors& parameters,
                const std::string& base_model);

/// The same model without adapters, and its parameters: frozen ones unchanged, or with the adapters merged into them.
ModelConfig without_adapters(const ModelConfig& config);
NamedTensors without_adapters(const NamedTensors& parameters);
NamedTensors with_adapters_merged(const ModelConfig& config, const NamedTensors& parameters);

}  // namespace caravan
