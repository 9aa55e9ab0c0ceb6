#pragma once

#include <string>

#include "caravan/engine/training_state.h"

namespace caravan {

/// The state that Optimizer::keep_average adds.
inline constexpr const char* kAverage = "average";

/// The name in a checkpoint of the average of a parameter's values.
inline std::string average_tensor(const std::string& parameter) {
  return std::string(kOptimizerTensors) + kAverage + "." + parameter;
}

}  // namespace caravan
