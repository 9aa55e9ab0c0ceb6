#pragma once

#include "caravan/engine/strategy.h"

namespace caravan::testing {

/// Test-only technique, like ZeRO-3: parameters, gradients and optimizer state are sharded; a group is gathered for its
/// forward and again for its backward, one event ahead, and reduced in every micro-batch (a joint group: once).
inline void shard_everything(Strategy& strategy, const Mesh& mesh, const std::string& axis) {
  add_data_axis(strategy, mesh, axis);
  shard_at_rows(strategy, mesh, axis);
  strategy.name = "shard_everything";
}

}  // namespace caravan::testing
