#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "caravan/formats/huggingface/architectures/architecture_row.h"
#include "caravan/nn/config.h"

namespace caravan {

using TensorShapes = std::map<std::string, std::vector<int64_t>>;  ///< by name

/// A WeightColumn of one layer of one model: tensors of a Hugging Face file and of Model with the same elements. Theirs,
/// concatenated on dim 0, equal ours put together by the form. At least one of the lists has a single name.
struct HuggingfaceRow {
  std::vector<std::string> theirs;  ///< all of one shape
  std::vector<std::string> ours;
  WeightColumn::Form form;
  double offset;
  int64_t unused_rows;
  int64_t groups;  ///< heads of keys, of form by_head
};

struct HuggingfaceTable {
  std::string prefix;  ///< of the names of their base model, which a file of a base model alone omits
  std::string head;    ///< their name of the output layer
  std::vector<HuggingfaceRow> rows;
};

/// The rows of all tensors of the model, in forward order. `ours`: the shapes of its parameters. Throws UsageError for
/// a model that transformers does not have (architecture_of).
HuggingfaceTable huggingface_table(const ModelConfig& config, const TensorShapes& ours);

}  // namespace caravan
