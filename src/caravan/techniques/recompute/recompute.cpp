#include "caravan/techniques/recompute/recompute.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/pattern.h"
#include "caravan/base/text.h"
#include "caravan/nn/tiles.h"
#include "caravan/techniques/recompute/region.h"

namespace caravan {
namespace {

[[noreturn]] void refuse_recompute(const std::string& subject, const std::string& fact, const std::string& action) {
  throw UsageError({"recompute", subject.empty() ? "the model" : subject, fact, "", action});
}

bool holds(Module& outer, const Module* inner) {
  const std::vector<Module*> inside = outer.modules();
  return &outer != inner && std::ranges::find(inside, inner) != inside.end();
}

/// Adds `module`, unless it is there already or inside one that the same pattern has matched.
void add_outermost(std::vector<Module*>& modules, Module* module) {
  const auto covers = [&](Module* other) { return other == module || holds(*other, module); };
  if (std::ranges::none_of(modules, covers)) modules.push_back(module);
}

/// The units inside a module that is not a unit: such a module cannot be recomputed.
std::vector<std::string> units_inside(Module& module, const Strategy& strategy) {
  std::vector<std::string> inside;
  for (const Strategy::Unit& unit : strategy.units) {
    if (unit.module == &module) return {};
    if (holds(module, unit.module)) inside.push_back(unit.module->name());
  }
  return inside;
}

std::vector<Module*> matching(const std::string& pattern, const Strategy& strategy, Module& model,
                              const std::string& hint) {
  std::vector<Module*> found;
  for (Module* module : model.modules()) {
    if (matches_pattern(pattern, module->name())) add_outermost(found, module);
  }
  for (const Module* module : found) {
    if (module->is_run()) continue;
    refuse_recompute(pattern, module->name() + " is not run by itself",
                     "name the whole layer of experts, such as '*.mlp.experts'");
  }
  if (!found.empty()) return found;
  std::vector<std::string> names;
  for (Module* module : model.modules()) {
    if (module->is_run() && units_inside(*module, strategy).empty()) names.push_back(module->name());
  }
  refuse_recompute(pattern, "no module has such a name",
                   hint.empty() ? fmt::format("the nearest is '{}'", nearest_pattern(pattern, names)) : hint);
}

std::vector<Module*> listed_blocks(Module& model) {
  std::vector<Module*> found;
  for (Module* module : model.modules()) {
    const std::vector<Module*> blocks = module->blocks();
    if (module == &model || (blocks.size() == 1 && blocks.front() == module)) continue;
    for (Module* block : blocks) add_outermost(found, block);
  }
  return found.empty() ? model.blocks() : found;
}

std::vector<Module*> chosen_modules(const RecomputeOptions& options, const Strategy& strategy, Module& model) {
  if (options.modules.empty()) return listed_blocks(model);
  std::vector<Module*> all;
  for (const std::string& pattern : options.modules) {
    for (Module* module : matching(pattern, strategy, model, options.hint)) {
      if (std::ranges::find(all, module) == all.end()) all.push_back(module);
    }
  }
  return all;
}

void check_alone(Module& module, const std::vector<Module*>& others) {
  for (Module* outer : others) {
    if (!holds(*outer, &module)) continue;
    const std::string around = outer->name().empty() ? "the model" : outer->name();
    refuse_recompute(module.name(), fmt::format("is inside {}, which is recomputed as a whole", around),
                     "recompute one of the two");
  }
}

bool holds_tiles(Module& module) {
  return std::ranges::any_of(module.modules(), [](Module* part) { return dynamic_cast<TileSlot*>(part) != nullptr; });
}

void check_units(Module& module, const Strategy& strategy) {
  const std::vector<std::string> inside = units_inside(module, strategy);
  if (inside.empty()) return;
  refuse_recompute(module.name(), fmt::format("holds {} units of the strategy, but is not a unit", inside.size()),
                   holds_tiles(module) ? "recompute the block around it, or make it a unit too: data_parallel.units"
                                       : fmt::format("recompute the units instead: {}", join(inside)));
}

}  // namespace

void add_recompute(Strategy& strategy, Module& model, const RecomputeOptions& options) {
  const std::vector<Module*> modules = chosen_modules(options, strategy, model);
  std::vector<Module*> all = modules;
  for (const std::string& name : strategy.recomputed) all.push_back(name.empty() ? &model : &model.find(name));
  for (Module* module : all) {
    check_alone(*module, all);
    check_units(*module, strategy);
  }
  const bool draws = std::ranges::any_of(model.parameters(), [](const auto* slot) { return slot->is_external(); });
  const auto around = [draws](Module& module, Tensors inputs, const ForwardContext& context, const Next& next) {
    return run_region(module, std::move(inputs), context, next, draws);
  };
  for (Module* module : modules) {
    if (std::ranges::find(strategy.recomputed, module->name()) != strategy.recomputed.end()) continue;
    strategy.recomputed.push_back(module->name());
    strategy.hooks.push_back(std::make_shared<const Hook>(module->add_hook(around, Module::Place::outermost)));
  }
  for (Strategy::Unit& unit : strategy.units) {
    unit.is_recomputed = unit.is_recomputed || std::ranges::find(modules, unit.module) != modules.end();
  }
}

}  // namespace caravan
