#pragma once

#include <string>
#include <vector>

#include "caravan/cost/hardware.h"
#include "caravan/plan/prediction.h"

namespace caravan {

/// "212.0 ms", "8.264 s".
std::string step_seconds_text(double seconds);
/// The same for a sentence: "46.3 ms", "3.25 s".
std::string short_seconds(double seconds);
/// "14.9 GiB of 23.0 GiB, 168 GiB of the host", or what does not fit.
std::string fit_text(const Prediction& prediction);
/// Devices and links of a plan, a line each.
std::string hardware_text(const Hardware& hardware, int num_ranks);

/// A layout in the table of a plan.
struct PlanRow {
  std::string text;
  Prediction prediction;
};
/// The table, two lines for each row: step, tokens or rows a second, MFU, memory, and what takes the time.
std::string rows_text(const std::vector<PlanRow>& rows);

}  // namespace caravan
