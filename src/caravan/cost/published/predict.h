#pragma once

#include <string>
#include <vector>

#include "caravan/cost/published/run.h"
#include "caravan/cost/published/stage_memory.h"

namespace caravan::published {

/// Seconds of a pass of one layer, of the embedding or of the head.
struct PassTime {
  double seconds = 0;   ///< with what is below, or the launches of the host if these take longer
  double products = 0;  ///< on the device
  double attention = 0;
  double memory = 0;
  double exposed = 0;  ///< of calls, not hidden
};

struct Prediction {
  double step_seconds = 0;
  double memory_bytes = 0;  ///< at most what a run that fitted the device can have used
  double uncapped_bytes = 0;
  double device_bytes = 0;
  double peak_flops = 0;        ///< of all devices, 16 bit
  double executed_flops = 0;    ///< of a step, recomputation included
  double pipeline_seconds = 0;  ///< of step_seconds: the micro-batches of all stages
  std::string layout{};         ///< "tp 8 pp 4 dp 2"
  std::string failure{};        ///< why the step is only estimated; "": it is not
  PassTime layer_forward{}, layer_backward{};
};

/// The time and memory of a step, from its operations on its hardware. Never throws: a run that has no schedule or
/// whose numbers do not fit each other takes as long as products at 40 % of the peak.
Prediction predict(const Row& row);

}  // namespace caravan::published
