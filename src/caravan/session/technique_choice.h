#pragma once

#include <cstdint>
#include <vector>

#include "caravan/mesh/mesh.h"
#include "caravan/module/module.h"
#include "caravan/session/techniques.h"
#include "caravan/session/trainable.h"
#include "caravan/techniques/make_strategy.h"

namespace caravan {

/// What the techniques choose for `model`, a user's own module if `is_own`, on a mesh with an axis dp. The number of
/// micro-batches is that of the pipeline, if it says one. Throws UsageError as parallelize().
StrategyChoice choice_of(const std::vector<Technique>& techniques, Module& model, const Mesh& mesh, bool is_own,
                         int64_t& micro_batches);

/// The layouts of tensor() among the techniques, for a net on this mesh; none without it. Throws UsageError for two of
/// them, for one without layouts, and for a net that is a Module of this library, which has plans of its own.
std::vector<NamedLayout> tensor_layouts(const std::vector<Technique>& techniques, const Trainable& net,
                                        const Mesh& mesh);

}  // namespace caravan
