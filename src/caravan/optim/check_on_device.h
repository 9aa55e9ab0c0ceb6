#pragma once

#include <string>

#include "caravan/base/error.h"
#include "caravan/engine/flat/flat.h"

namespace caravan {

/// Throws UsageError for an optimizer, by its name in recipes, that cannot update part by part what rests outside of
/// the device. `need`: "needs whole matrices".
inline void check_on_device(const FlatState& state, const char* optimizer, const std::string& need) {
  const bool is_away = state.values.tier() != Tier::device || state.gradients.tier() != Tier::device ||
                       state.copies.tier() != Tier::device || state.optimizer_tier != Tier::device;
  if (!is_away) return;
  throw UsageError({"optimizer", optimizer,
                    need +
                        ", but parameters, gradients or its state rest outside of the device, where they are updated "
                        "part by part",
                    state.mesh ? state.mesh->where() : "", "offload activations only, or use AdamW"});
}

}  // namespace caravan
