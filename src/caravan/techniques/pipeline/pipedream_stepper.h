#pragma once

#include "caravan/step/stepper.h"

namespace caravan {

/// The stepper of a pipeline whose stages do not wait for each other (PipelineChoice::is_asynchronous), in windows from
/// boundary to boundary: inside a window each stage steps its optimizer after its backward of a step, and starts
/// the next one. The norm is that of the last step, with each stage's gradient at the weights that it had. A window
/// sends, beyond what the strategy sends, 16 bytes and 560 for the norm, and asks for a stop when it begins. Every rank
/// of the mesh calls it.
std::unique_ptr<Stepper> make_pipedream_stepper(const StepperInputs& inputs);

}  // namespace caravan
