#pragma once

#include <cstdint>
#include <optional>

#include "caravan/base/misfit.h"
#include "caravan/nn/config.h"

namespace caravan {

/// Why the layers of a model cannot be split in `degree` parts.
std::optional<Misfit> misfit_of_degree(const ModelConfig& config, int64_t degree);

}  // namespace caravan
