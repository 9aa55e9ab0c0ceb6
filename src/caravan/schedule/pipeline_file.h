#pragma once

#include <string>

#include "caravan/schedule/pipeline_schedule.h"

namespace caravan {

/// A schedule as text, a line for each rank in turn; # begins a comment:
///
///   rank 0: F0.0 F0.1 B0.0 B0.1
///   rank 1: F1.0 B1.0 W1.0 F1.1 C1.1 B1.1 W1.1
///
/// A pass is its kind (F forward, C recompute, B backward, W weight gradients), the stage and the micro-batch. A stage
/// is on the rank that has its passes. `source` names the text in errors. Throws UsageError, naming the line and what
/// was expected, for another text, and as check() for a table that breaks a rule.
PipelineOrder parse_pipeline_table(const std::string& text, const std::string& source);

/// The schedule as text in this format.
std::string to_text(const PipelineOrder& order);

/// Checks the tables of a schedule, with a unit for each stage (schedule/schedule.h). Throws as check().
void check(const PipelineOrder& order);

}  // namespace caravan
