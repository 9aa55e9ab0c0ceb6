#pragma once

#include <cstdint>
#include <optional>

#include "caravan/base/misfit.h"
#include "caravan/nn/config.h"
#include "caravan/registry/setting.h"
#include "caravan/registry/split_parts.h"

namespace caravan {

/// A technique that splits layers or sequences, and the ranks of its axis of the mesh.
struct Split {
  Setting kind;
  int64_t degree = 1;
  bool is_used() const { return degree > 1; }
  /// One part of each kind if it is not used.
  SplitParts parts() const;
  /// Why it cannot split this model, which others split too.
  std::optional<Misfit> misfit(const ModelConfig& model, const SplitParts& others = {}) const;
};

}  // namespace caravan
