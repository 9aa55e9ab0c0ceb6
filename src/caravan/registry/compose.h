#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "caravan/base/misfit.h"
#include "caravan/registry/setting.h"

namespace caravan {

/// What a run asks of each of its techniques.
struct Demand {
  Trait trait;
  std::string key;     ///< of the recipe, by which it asks: "optimizer.clip_norm"
  std::string why;     ///< "needs the norm of the whole gradient"
  std::string action;  ///< what takes it back: "use optimizer.clip_norm = 0"
};

/// Whether techniques can stand beside each other and meet the demands of a run: the one place where compositions are
/// refused, by traits and never by name. Returns the first that does not fit.
std::optional<Misfit> find_misfit(std::span<const Setting> techniques, std::span<const Demand> demands);

}  // namespace caravan
