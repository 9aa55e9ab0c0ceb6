#pragma once

#include "apps/caravan/plan/plan_job.h"
#include "caravan/plan/predict.h"

namespace caravan::app {

/// Writes the predicted timeline of a layout into the files of --trace and --svg. Throws ResourceError.
void write_timelines(const PlannedJob& job, const Predictor& predictor, const PlannedLayout& layout);

/// Throws ResourceError.
void write_text(const std::string& file, const std::string& text);

}  // namespace caravan::app
