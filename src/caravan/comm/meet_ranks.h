#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "caravan/comm/options.h"
#include "caravan/comm/store.h"

namespace caravan {

/// How long a rank waits for the others where they meet first: at least 5 s, since a rank that starts has more to do
/// than one that calls.
std::chrono::milliseconds meeting_timeout(const CommOptions& options);

/// "ranks 1, 3 of 4 did not come within 5 s", or those of `missing` that are known to have ended: "rank 3 of 4 ended
/// before the ranks met".
std::string missing_text(std::vector<int64_t> missing, int world_size, Store& store, std::chrono::milliseconds timeout);

}  // namespace caravan
