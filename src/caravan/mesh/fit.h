#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/base/misfit.h"
#include "caravan/mesh/placement.h"

namespace caravan {

/// Checks that an axis of `n` coordinates named `axis` ("" if unnamed) can split `rows` rows of shard.dim(). Texts are
/// built only if they do not fit.
std::optional<Misfit> misfit(const Placement& shard, int64_t rows, int n, std::string_view axis);

/// Rows of each coordinate. misfit() must have returned nothing.
std::vector<int64_t> rows_of(const Placement& shard, int64_t rows, int n);

/// A shape as text: "[4096, 1000]".
std::string shape_text(const int64_t* sizes, size_t count);

}  // namespace caravan
