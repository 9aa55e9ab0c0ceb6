#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/mesh/placement.h"

namespace caravan {

/// Why a dim cannot be split as a shard asks, in the words of an error.
struct Misfit {
  std::string fact;
  std::string action;
};

/// Checks that an axis of `n` coordinates named `axis` ("" if it has no name) can split `rows` rows of shard.dim().
/// Costs nothing when they fit, so callers need not prepare a message.
std::optional<Misfit> misfit(const Placement& shard, int64_t rows, int n, std::string_view axis);

/// Rows of each coordinate; they must fit.
std::vector<int64_t> rows_of(const Placement& shard, int64_t rows, int n);

/// The divisors of `rows` nearest to `n`, at most `on_each_side` below (n included) and above: "{1, 2, 4, 5, 8, 10}".
std::string divisors_near(int64_t rows, int64_t n, size_t on_each_side = 4);

/// "[4096, 1000]".
std::string shape_text(const int64_t* sizes, size_t count);

}  // namespace caravan
