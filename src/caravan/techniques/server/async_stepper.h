#pragma once

#include "caravan/step/stepper.h"
#include "caravan/techniques/server/async_trainer.h"

namespace caravan {

/// The stepper of workers that do not wait for each other, from drain to drain: an AsyncTrainer, with the options that
/// are in the inputs. A worker's step has the rows of one rank, and its loss is the mean over its own targets. Every
/// rank of the mesh calls it. Without clocks for all ranks, each starts with that of the slowest. Throws as
/// AsyncTrainer.
std::unique_ptr<Stepper> make_async_stepper(const StepperInputs& inputs, AsyncOptions options);

/// The most bytes of messages that this rank may hold at once: all gradients of a step of its worker and, for each
/// other worker, the largest push to its server and all values of the server in answers.
int64_t most_bytes_in_flight(const Engine& engine);

}  // namespace caravan
