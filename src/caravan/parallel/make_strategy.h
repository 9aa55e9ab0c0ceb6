#pragma once

#include <string>

#include "caravan/engine/strategy.h"

namespace caravan {

/// What a recipe says about parallelism.
struct StrategyChoice {
  std::string data_parallel;  ///< one of data_parallel_techniques()
  int64_t bucket_bytes = int64_t{25} << 20;
  at::ScalarType compute_dtype = at::kFloat;
};

/// The one place where names of techniques become strategies. `mesh` may get further axes. Every rank calls it. Throws
/// UsageError, naming the nearest, for a name that is none.
Strategy make_strategy(const StrategyChoice& choice, Module& model, Mesh& mesh);

}  // namespace caravan
