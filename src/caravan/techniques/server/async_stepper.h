#pragma once

#include "caravan/step/stepper.h"
#include "caravan/techniques/server/async_trainer.h"

namespace caravan {

/// The steps of workers that do not wait for each other, from drain to drain: AsyncTrainer, of whose options the inputs
/// give what is in both. A worker's step has the rows of one rank, and its loss is the mean over its own targets. Every
/// rank of the mesh calls it. Without clocks of as many ranks, all have those of the slowest. Throws as AsyncTrainer.
std::unique_ptr<Stepper> make_async_stepper(const StepperInputs& inputs, AsyncOptions options);

/// The most that this rank may hold of messages at once: all gradients of a step of its worker, and, for each other
/// worker, the largest push to its server and all values of that in answers.
int64_t most_bytes_in_flight(const Engine& engine);

}  // namespace caravan
