#pragma once

#include <vector>

#include "caravan/comm/communicator.h"
#include "caravan/formats/checkpoint/manifest.h"
#include "caravan/module/parameter.h"
#include "caravan/session/optimizer_state.h"

namespace caravan {

/// The kind of an optimizer, its options for every parameter that some rank optimizes, and the steps of its schedulers.
/// Every rank of `world` calls it and gets the same. Throws UsageError on every rank if an option is not finite, or
/// differs between two ranks for one parameter. Sends 16 bytes for each option of each parameter.
OptimizerRecord record_of(const OptimizerState& optimizer, const std::vector<Parameter*>& parameters,
                          Communicator& world);

/// Throws DataError unless `saved` is of the kind of `own`, with the same options for the same parameters, learning
/// rates aside, and as many schedulers; and if the parameters of a group of `optimizer` were saved with several
/// learning rates. Names the options with both values. A record without a kind has no options: they pass.
void check_record(const OptimizerRecord& saved, const OptimizerRecord& own, const OptimizerState& optimizer,
                  const std::vector<Parameter*>& parameters);

/// Gives the groups their saved learning rates and the schedulers their steps. `saved` has passed check_record.
void restore_record(const OptimizerRecord& saved, OptimizerState& optimizer, const std::vector<Parameter*>& parameters);

}  // namespace caravan
