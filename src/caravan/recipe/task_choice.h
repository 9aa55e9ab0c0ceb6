#pragma once

#include <string>
#include <vector>

#include "caravan/nn/config.h"

namespace caravan {

/// Pairs of answers, one of which is preferred (data.task = "preference"), and the loss of them.
struct PreferenceChoice {
  std::string loss = "dpo";  ///< or "ipo"
  double beta = 0.1;
  double label_smoothing = 0;  ///< dpo
  /// The folder of the reference model; "": the model that the run starts from, or with adapters the weights under
  /// them.
  std::string reference{};
  std::string prompt_field = "prompt";
  std::string chosen_field = "chosen";
  std::string rejected_field = "rejected";
};

/// What is learned, and how rows are made of the data for it (data.task and the keys that it reads).
struct TaskChoice {
  std::string kind = "next";           ///< or "masked", "spans", "classify", "pairs", "preference"
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
  PreferenceChoice preference{};

  bool has_preferences() const { return kind == "preference"; }
  /// Lines of JSON lines have records, not texts.
  bool has_records() const { return kind == "classify" || kind == "pairs" || has_preferences(); }
  /// Of a row, which the model reads apart: the chosen and the rejected answer, each after its prompt.
  int64_t sequences() const { return has_preferences() ? 2 : 1; }
};

/// data.task of a model for which nobody says otherwise.
inline const char* usual_task(const ModelConfig& model) {
  if (model.classes > 0) return "classify";
  if (model.has_encoder()) return "spans";
  return model.arch.is_causal ? "next" : "masked";
}

}  // namespace caravan
