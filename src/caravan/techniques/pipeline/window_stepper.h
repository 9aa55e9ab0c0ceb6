#pragma once

#include <chrono>
#include <memory>

#include "caravan/techniques/pipeline/pipedream_stepper.h"
#include "caravan/techniques/technique_body.h"

namespace caravan {

/// The stepper of stages that do not wait for each other until the setting drains them.
inline std::unique_ptr<Stepper> make_window_stepper(StepperInputs inputs, const Setting& setting,
                                                    std::chrono::milliseconds) {
  inputs.steps_at_once = setting.whole("drain");
  return make_pipedream_stepper(inputs);
}

}  // namespace caravan
