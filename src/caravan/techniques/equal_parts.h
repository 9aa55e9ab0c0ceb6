#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "caravan/base/misfit.h"
#include "caravan/nn/config.h"

namespace caravan {

/// `rows` split among n ranks in parts that differ by at most one; the first parts are the larger ones.
std::vector<int64_t> parts_of(int64_t rows, int64_t n);

/// Why the layers of a model cannot be split in `degree` parts.
std::optional<Misfit> misfit_of_degree(const ModelConfig& config, int64_t degree);

}  // namespace caravan
