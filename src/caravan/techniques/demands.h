#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "caravan/registry/compose.h"
#include "caravan/schedule/pipeline_choice.h"

namespace caravan {

/// The properties of a run that its techniques must support.
struct RunProperties {
  int64_t tp = 1, cp = 1, ep = 1, pp = 1;  ///< degrees of the axes that split the model
  bool computes_in_fp16 = false;
  bool keeps_16_bit_gradients = false;
  bool reduces_in_16_bits = false;
};

std::vector<Demand> demands_of(const RunProperties& run);
/// What the optimizer needs of the techniques of a run, and of its tiles.
std::vector<Demand> demands_of_optimizer(const Setting& optimizer);

/// A key of data parallelism that offloaded parameters leave without effect: they are gathered by unit, into memory of
/// the rank's own. And delayed updates of what layers read. A tier that is "auto" fits.
std::optional<Misfit> misfit_of_offload(const Setting& data_parallel, const Setting& offload, bool computes_in_16_bits);

/// Chunks hold parameters that rest outside of the device.
std::optional<Misfit> misfit_of_chunks(const Setting& chunks, const Setting& offload);

/// The settings of the techniques of a run, of families of the registry. A pipeline with its own table has none.
std::vector<Setting> techniques_of(const Setting& data_parallel, const Setting& hook, const Setting& recompute,
                                   const PipelineChoice& pipeline, const Setting& offload);

}  // namespace caravan
