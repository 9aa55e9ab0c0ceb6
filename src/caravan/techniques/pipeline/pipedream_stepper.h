#pragma once

#include "caravan/step/stepper.h"

namespace caravan {

/// The steps of a pipeline whose stages do not wait for each other (PipelineChoice::is_asynchronous), in windows from
/// boundary to boundary: inside of one each stage steps its optimizer when its backward of a step is over, and computes
/// the next one meanwhile. The norm is that of the last step, each stage's gradient by the weights that it had. A
/// window sends, beside what the strategy does, 16 bytes and the norm's 560, and asks for a stop when it begins. Every
/// rank of the mesh calls it.
std::unique_ptr<Stepper> make_pipedream_stepper(const StepperInputs& inputs);

}  // namespace caravan
