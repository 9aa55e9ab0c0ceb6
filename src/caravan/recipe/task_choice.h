#pragma once

#include <string>

namespace caravan {

/// What is learned, and how rows are made of the data for it (data.task and the keys that it reads).
struct TaskChoice {
  std::string kind = "next";            ///< or "masked", "spans", "classify", "pairs"
  double mask_rate = 0.15;              ///< masked, spans: of the tokens
  bool whole_words = false;             ///< masked
  double span_length = 3;               ///< spans: mean
  std::string pair_field{};             ///< classify: of the second text; "": there is none
  std::string label_field = "label";    ///< classify
  std::string source_field = "source";  ///< pairs
  std::string target_field = "target";  ///< pairs

  /// Lines of JSON lines have records, not texts.
  bool has_records() const { return kind == "classify" || kind == "pairs"; }
};

}  // namespace caravan
