#pragma once

#include <cstdint>
#include <vector>

#include "caravan/cost/published/run.h"
#include "caravan/cost/step_timeline.h"

namespace caravan::published {

/// What a rank computes and sends for one micro-batch, in the nouns of a rehearsed step.

struct Compute {
  KernelWork work{};
  double kernels = 1;   ///< on the device, of which `work` is the sum
  double launches = 1;  ///< by the host
};

struct Communication {
  /// Compute of the same pass behind which the call may run.
  enum class Behind : uint8_t { nothing, products, weight_gradients, attention };
  StepTimeline::Call call{};
  Behind behind = Behind::nothing;
};

struct Pass {
  std::vector<Compute> computes{};
  std::vector<Communication> calls{};
  double share = 1;  ///< of the micro-batches, or of the layers, that do it
};

/// Of one layer, of the embedding, or of the head with its loss.
struct Passes {
  Pass forward{}, recompute{}, backward{}, weights{};
};

Passes layer_passes(const Run& run);
Passes embedding_passes(const Run& run);
Passes head_passes(const Run& run);

/// What a stage does once a step: bytes of whole tensors, and moved.
struct StepWork {
  double gradient_bytes = 0;     ///< reduced
  double weight_bytes = 0;       ///< gathered
  double optimizer_bytes = 0;    ///< moved by the optimizer
  double tied_bytes = 0;         ///< gradient of the embedding, which the first and the last stage have
  double offloaded_weights = 0;  ///< number of them
};
StepWork step_work(const Run& run, size_t stage);

}  // namespace caravan::published
