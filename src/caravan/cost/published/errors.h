#pragma once

#include <string>
#include <vector>

#include "caravan/cost/published/predict.h"
#include "caravan/cost/published/table.h"

namespace caravan::published {

/// Relative errors of predictions.
struct Errors {
  int64_t count = 0;
  double median = 0, ninth_decile = 0, most = 0;
};

/// The layout that the predictions choose, where a source has at least 3 of one model, number of devices and batch.
struct Choices {
  int64_t groups = 0, rows = 0;
  double median_spearman = 0, mean_spearman = 0;
  double within = 0;  ///< share of groups whose chosen layout is at most 5 % slower than the fastest
  double mean_loss = 0, most_loss = 0;
};

/// How far the predictions for the runs of one source are from its answers.
struct SourceErrors {
  std::string name{};
  Errors step{};
  double bias = 0;           ///< median of prediction over answer
  double best_fraction = 0;  ///< of the peak: the constant that has the smallest median error
  Errors best_constant{};    ///< of predictions by it
  Errors memory{};
  Choices choices{};
};

/// By source (columns file and tier), in alphabetical order; `predictions`: by row. Rows without answers (step_s,
/// mem_gb) are left out.
std::vector<SourceErrors> errors_of(const std::vector<Row>& rows, const std::vector<Prediction>& predictions);

/// A table, with a line for each source; "" without answers.
std::string to_text(const std::vector<SourceErrors>& errors);

}  // namespace caravan::published
