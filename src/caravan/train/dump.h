#pragma once

#include <cstdint>
#include <filesystem>

#include "caravan/mesh/mesh.h"
#include "caravan/train/run_state.h"
#include "caravan/train/step.h"

namespace caravan {

/// Writes DIR/step_N of one training step, so that another program can check it, under Hugging Face names and shapes
/// whatever the layout:
///   config.json
///   batch.safetensors        input_ids, labels int64 [sequences, context]: the whole global batch
///   parameters.safetensors   before the step
///   gradients.safetensors    summed over ranks, before clipping
///   metrics.json             step, loss, grad_norm
/// Every rank calls it, between the reduction of the gradients and the update; rank 0 writes. Throws ResourceError.
void dump_step(const std::filesystem::path& dir, int64_t step, RunState& state, const TrainBatch& global_batch,
               const StepResult& result, const Mesh& mesh);

}  // namespace caravan
