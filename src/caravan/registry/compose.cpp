#include "caravan/registry/compose.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/registry/registry.h"

namespace caravan {
namespace {

/// A change of a setting after which it has a trait and meets all other requirements.
struct WayOut {
  std::string key;    ///< "data_parallel.mode"
  std::string value;  ///< its present value
  std::string text;   ///< "data_parallel.mode = \"sync\""; "": there is no such value, and no entry that has the trait
};

WayOut way_out(const Setting& setting, const Traits& traits, const std::set<Trait>& asked) {
  const auto has_all = [&](const Setting& other) {
    const Traits its = other.traits();
    return std::ranges::includes(its.has, asked);
  };
  for (const auto& [key, value] : traits.instead) {
    Setting other = setting;
    other.set(key, value);
    const std::string name = setting.full_name(key);
    if (has_all(other)) return {name, setting.text(key), fmt::format("{} = \"{}\"", name, value)};
  }
  std::vector<std::string> names;
  for (const std::string& name : names_of(setting.family().name)) {
    if (setting.family().key.empty()) break;  // nothing is chosen
    if (has_all(Setting(setting.family().name, name))) names.push_back(name);
  }
  if (names.size() > 2) names.resize(2);
  const std::string text =
      names.empty() ? "" : fmt::format("{} = \"{}\"", setting.full_name(), join(names, "\" or \""));
  return {setting.full_name(), setting.name(), text};
}

/// "use a, or b", of those that exist.
std::string either(const std::string& first, const std::string& second) {
  return first + (first.empty() || second.empty() ? "" : ", or ") + second;
}

std::optional<Misfit> find_unmet(const Setting& setting, const Traits& traits, std::span<const Demand> demands) {
  for (const Demand& demand : demands) {
    if (traits.has.contains(demand.trait)) continue;
    const std::string why = traits.because.empty()
                                ? fmt::format("{} \"{}\" does not say that it can", setting.full_name(), setting.name())
                                : traits.because;
    return Misfit{demand.key, fmt::format("{}, and {}", demand.why, why),
                  either(demand.action, way_out(setting, traits, {demand.trait}).text)};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Misfit> find_misfit(std::span<const Setting> techniques, std::span<const Demand> demands) {
  for (const Setting& setting : techniques) {
    const Traits traits = setting.traits();
    if (auto misfit = find_unmet(setting, traits, demands)) return misfit;
    for (const Setting& other : techniques) {
      if (&other == &setting) continue;
      const Traits asking = other.traits();
      for (const auto& [trait, why] : asking.needs) {
        if (traits.has.contains(trait)) continue;
        std::set<Trait> asked;
        for (const auto& need : asking.needs) asked.insert(need.first);
        const WayOut way = way_out(setting, traits, asked);
        const Setting first(other.family().name);
        const std::string without = other.family().key.empty()
                                        ? fmt::format("nothing of section [{}]", other.family().section)
                                        : fmt::format("{} = \"{}\"", other.full_name(), first.name());
        return Misfit{way.key, fmt::format("\"{}\" does not fit: {}", way.value, why),
                      "use " + either(way.text, without)};
      }
    }
  }
  return std::nullopt;
}

}  // namespace caravan
