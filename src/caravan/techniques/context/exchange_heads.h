#pragma once

#include <cstdint>
#include <optional>

#include "caravan/base/misfit.h"
#include "caravan/nn/config.h"
#include "caravan/registry/split_parts.h"

namespace caravan {

/// Why the texts of the model cannot be split over `ranks`, by a ring or by other means.
std::optional<Misfit> misfit_of_text(const ModelConfig& model, int64_t ranks, bool has_ring);

/// Why `ranks` ranks that exchange sequence for heads cannot share the heads of the model, given the splits of others.
std::optional<Misfit> misfit_of_heads(const ModelConfig& model, int64_t ranks, const SplitParts& others);

}  // namespace caravan
