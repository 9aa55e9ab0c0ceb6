#pragma once

#include <cstdint>
#include <filesystem>

#include "caravan/step/train_step.h"
#include "caravan/train/folder/run_state.h"

namespace caravan {

/// Writes one training step to DIR/step_N, for comparison with another program. Names and shapes are those of Hugging
/// Face, for every layout:
///   config.json
///   batch.safetensors        input_ids, labels int64 [sequences, context] of the whole global batch; for packed
///                            documents also position_ids, document_ids
///   parameters.safetensors   before the step
///   gradients.safetensors    summed over ranks, before clipping
///   metrics.json             step, loss, grad_norm
/// Every rank calls it, after the gradients are reduced and before the update; rank 0 writes. Throws ResourceError.
void dump_step(const std::filesystem::path& dir, int64_t step, RunState& state, const TrainBatch& global_batch,
               const StepResult& result);

}  // namespace caravan
