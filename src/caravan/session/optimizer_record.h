#pragma once

#include <vector>

#include "caravan/comm/communicator.h"
#include "caravan/formats/checkpoint/manifest.h"
#include "caravan/module/parameter.h"
#include "caravan/session/optimizer_state.h"

namespace caravan {

/// The kind of an optimizer, and its options for every parameter that some rank optimizes, with its group. Every rank
/// of `world` calls it and gets the same. Throws UsageError on every rank if an option is not finite, or differs
/// between two ranks for one parameter. Sends 16 bytes for each option of each parameter.
OptimizerRecord record_of(const OptimizerState& optimizer, const std::vector<Parameter*>& parameters,
                          Communicator& world);

/// Throws DataError unless `saved` is of the kind of `own`, with the same options for the same parameters in the same
/// groups, learning rates aside; and if the parameters of a group of `optimizer` were saved with several learning
/// rates. Names the options with both values. A record without a kind has no options, and one of an earlier version has
/// no groups: they pass.
void check_record(const OptimizerRecord& saved, const OptimizerRecord& own, const OptimizerState& optimizer,
                  const std::vector<Parameter*>& parameters);

/// Gives the groups their saved learning rates. `saved` has passed check_record.
void restore_record(const OptimizerRecord& saved, OptimizerState& optimizer, const std::vector<Parameter*>& parameters);

}  // namespace caravan
