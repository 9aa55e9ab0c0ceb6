#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "caravan/nn/config.h"

namespace caravan {

using TensorShapes = std::map<std::string, std::vector<int64_t>>;  ///< by name

/// Tensors of a Hugging Face file and of Model with the same elements: theirs concatenated on dim 0 equal ours
/// concatenated on dim 0 and, if `is_transposed`, transposed. At least one of the lists has a single name.
struct HuggingfaceRow {
  std::vector<std::string> theirs;  ///< all of one shape
  std::vector<std::string> ours;
  bool is_transposed;
};

struct HuggingfaceTable {
  std::string prefix;  ///< of the names of their base model, which a file of a base model alone omits
  std::vector<HuggingfaceRow> rows;
};

/// The rows of all tensors of the model, in forward order. `ours`: the shapes of its parameters. Throws UsageError for
/// a model that transformers does not have (huggingface_form).
HuggingfaceTable huggingface_table(const ModelConfig& config, const TensorShapes& ours);

}  // namespace caravan
