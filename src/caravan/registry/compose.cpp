#include "caravan/registry/compose.h"

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/registry/registry.h"

namespace caravan {
namespace {

/// What has the trait that this setting lacks: "data_parallel.mode = \"sync\"".
std::string what_has(const Setting& setting, const Traits& traits, Trait trait) {
  if (!traits.instead.empty()) return traits.instead;
  return setting.full_name() + " = \"" + join(names_with(setting.family().name, trait), "\" or \"") + "\"";
}

}  // namespace

std::optional<Misfit> find_misfit(std::span<const Setting> techniques, std::span<const Demand> demands) {
  for (const Setting& setting : techniques) {
    const Traits traits = setting.traits();
    for (const Demand& demand : demands) {
      if (traits.has.contains(demand.trait)) continue;
      return Misfit{demand.key, fmt::format("{}, and {}", demand.why, traits.because),
                    fmt::format("{}, or {}", demand.action, what_has(setting, traits, demand.trait))};
    }
    for (const Setting& other : techniques) {
      if (&other == &setting) continue;
      const Traits asking = other.traits();
      for (const auto& [trait, why] : asking.needs) {
        if (traits.has.contains(trait)) continue;
        return Misfit{traits.key, fmt::format("\"{}\" does not fit: {}", setting.name(), why),
                      fmt::format("use {}{}", what_has(setting, traits, trait),
                                  asking.instead.empty() ? "" : ", or " + asking.instead)};
      }
    }
  }
  return std::nullopt;
}

}  // namespace caravan
