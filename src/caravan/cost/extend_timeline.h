#pragma once

#include <cstdint>
#include <optional>

#include "caravan/cost/step_timeline.h"

namespace caravan {

/// The timeline of a step that repeats something more often. `more` is `few` with a block of moments inserted, which
/// returns `times` such blocks: from steps of 2p and of 3p micro-batches, that of any other multiple of p. A block's
/// waits may be for calls that an earlier block began. Nothing if `more` is not `few` and one block.
std::optional<StepTimeline> extend_timeline(const StepTimeline& few, const StepTimeline& more, int64_t times);

}  // namespace caravan
