#pragma once

#include <string>
#include <vector>

#include "caravan/nn/config.h"

namespace caravan {

/// What is learned, and how rows are made of the data for it (data.task and the keys that it reads).
struct TaskChoice {
  std::string kind = "next";           ///< or "masked", "spans", "classify", "pairs"
  double mask_rate = 0.15;             ///< masked, spans: of the tokens
  bool whole_words = false;            ///< masked
  double span_length = 3;              ///< spans: mean
  std::string pair_field{};            ///< classify: of the second text; "": there is none
  std::string label_field = "label";   ///< classify
  std::vector<std::string> classes{};  ///< classify: their names, in order; {}: those of the training records
  /// Those of the model that the run starts from (train.init_from), which it keeps if the records have no others.
  std::vector<std::string> source_classes{};
  std::string source_field = "source";  ///< pairs
  std::string target_field = "target";  ///< pairs

  /// Lines of JSON lines have records, not texts.
  bool has_records() const { return kind == "classify" || kind == "pairs"; }
};

/// data.task of a model for which nobody says otherwise.
inline const char* usual_task(const ModelConfig& model) {
  if (model.classes > 0) return "classify";
  if (model.has_encoder()) return "spans";
  return model.arch.is_causal ? "next" : "masked";
}

}  // namespace caravan
