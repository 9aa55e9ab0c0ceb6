#pragma once

#include <optional>

#include "caravan/engine/strategy.h"
#include "caravan/memory/recompute_choice.h"
#include "caravan/parallel/techniques.h"

namespace caravan {

/// What a recipe says about parallelism.
struct StrategyChoice {
  DataParallelChoice data_parallel{};
  at::ScalarType compute_dtype = at::kFloat;
  at::ScalarType gradient_dtype = at::kFloat;
  std::optional<at::ScalarType> reduce_dtype{};
  RecomputeChoice recompute{};
};

/// What the sections of a recipe say.
StrategyChoice strategy_choice(const DataParallelChoice& data_parallel, const PrecisionChoice& precision,
                               const RecomputeChoice& recompute);

/// The one place where names of techniques become strategies. `mesh` may get further axes. Every rank calls it. Throws
/// UsageError, naming the nearest valid choice, for a name or a number that is not one, and as add_recompute.
Strategy make_strategy(const StrategyChoice& choice, Module& model, Mesh& mesh);

}  // namespace caravan
