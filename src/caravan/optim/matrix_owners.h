#pragma once

#include <string>

#include "caravan/engine/flat/flat.h"
#include "caravan/mesh/mesh.h"
#include "caravan/optim/matrix_exchange.h"
#include "caravan/optim/matrix_plan.h"
#include "caravan/optim/matrix_ranks.h"

namespace caravan {

/// Which rank has what of a model whole, and the messages for it.
struct MatrixOwners {
  /// Every rank of `mesh` calls it. `optimizer`: who asks, for the error. Throws UsageError on every rank, as
  /// MatrixPlan, and for ranks that cut one parameter in unlike ways. Each rank sends 8 bytes to each other.
  MatrixOwners(const FlatState& state, const Mesh& mesh, WholeUnits units, const std::string& optimizer);
  MatrixOwners(const MatrixOwners&) = delete;
  MatrixOwners& operator=(const MatrixOwners&) = delete;

  MatrixRanks ranks;
  MatrixPlan plan;
  MatrixExchange exchange;
};

}  // namespace caravan
