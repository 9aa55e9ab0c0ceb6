#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "caravan/base/misfit.h"
#include "caravan/registry/setting.h"

namespace caravan {

/// A requirement of a run for each of its techniques.
struct Demand {
  Trait trait;
  std::string key;     ///< key of the recipe that requires it: "optimizer.clip_norm"
  std::string why;     ///< "needs the norm of the whole gradient"
  std::string action;  ///< what removes the requirement: "use optimizer.clip_norm = 0"
};

/// Whether techniques can be combined and meet the demands of a run. Compositions are refused only here, by traits and
/// never by name. Returns the first misfit.
std::optional<Misfit> find_misfit(std::span<const Setting> techniques, std::span<const Demand> demands);

}  // namespace caravan
