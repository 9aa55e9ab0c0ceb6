#pragma once

#include <cstdint>
#include <functional>

#include "caravan/data/tasks/task_rows.h"
#include "caravan/recipe/recipe.h"
#include "caravan/train/folder/metrics.h"
#include "caravan/train/folder/run_state.h"

namespace caravan {

class ReferenceModel;

struct ValidationOptions {
  int64_t rows = 1;                     ///< windows of one forward pass
  int64_t num_classes = 0;              ///< of data.task = "classify"
  ReferenceModel* reference = nullptr;  ///< of data.task = "preference"
  std::function<bool()> stop_requested = {};
  std::function<void(int64_t done, int64_t total)> progress = {};
};

/// The evaluation of a run after a step: the numbers val_.. of `metrics`, also with the average of the weights if the
/// run keeps one on the device. Every rank calls it. Returns false, and leaves `metrics` as they are, if a stop was
/// requested on any rank. Throws as evaluate().
bool validate(RunState& state, const Recipe& recipe, const ValidationRows& rows, const ValidationOptions& options,
              StepMetrics& metrics);

}  // namespace caravan
