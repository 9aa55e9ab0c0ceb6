#pragma once

#include <cstdint>

namespace caravan {

/// Steps of a run, counted from 1 as in its log.
struct StepRange {
  int64_t first = 1;
  int64_t last = 1;
};

}  // namespace caravan
