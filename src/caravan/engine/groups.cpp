#include "caravan/engine/groups.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

/// The innermost unit above or at each module, and above each unit (-1: none).
struct Innermost {
  std::map<const Module*, int> unit_of;
  std::vector<int> parents;

  explicit Innermost(const std::vector<Strategy::Unit>& units) {
    for (const Strategy::Unit& unit : units) {  // parents come before the units inside them, which overwrite
      const auto above = unit_of.find(unit.module);
      const auto index = static_cast<int>(parents.size());
      parents.push_back(above == unit_of.end() ? -1 : above->second);
      for (const Module* module : unit.module->modules()) unit_of[module] = index;
    }
  }
};

/// The units that use each parameter, ascending; parameters in model order.
std::vector<std::pair<Parameter*, std::set<int>>> users_of_parameters(const std::vector<Strategy::Unit>& units,
                                                                      const Innermost& innermost) {
  std::map<Parameter*, std::set<int>> users_of;
  for (const auto& [module, unit] : innermost.unit_of) {
    for (Parameter* parameter : module->own_parameters()) users_of[parameter].insert(unit);
  }
  std::vector<std::pair<Parameter*, std::set<int>>> users(users_of.begin(), users_of.end());
  std::map<const Parameter*, size_t> order;
  for (const auto& unit : units) {
    for (const Parameter* parameter : unit.module->parameters()) order.emplace(parameter, order.size());
  }
  std::sort(users.begin(), users.end(),
            [&](const auto& a, const auto& b) { return order.at(a.first) < order.at(b.first); });
  return users;
}

/// `layout` with the axes that `leaf` names instead of the axes that they are part of.
Layout on_axes_of(const Layout& leaf, const Layout& layout, const Mesh& mesh) {
  std::vector<Layout::Entry> entries;
  for (const auto& [name, placement] : layout.entries()) {
    const auto part = std::find_if(leaf.entries().begin(), leaf.entries().end(), [&, &whole = name](const auto& entry) {
      return mesh.has(entry.first) && mesh[entry.first].parent() == whole;
    });
    if (leaf.has(name) || part == leaf.entries().end()) {
      entries.emplace_back(name, placement);
      continue;
    }
    const MeshAxis& axis = mesh[part->first];
    Shard shard{.dim = placement.dim(), .owner = 0, .rows = placement.owner_rows()};
    while (axis.parent_coord(shard.owner) != placement.owner()) ++shard.owner;
    entries.emplace_back(part->first, shard);
  }
  return Layout(std::move(entries));
}

std::vector<AxisMove> without_idle(std::vector<AxisMove> moves, const Mesh& mesh) {
  std::erase_if(moves, [&](const AxisMove& move) {
    return mesh[move.axis].size() == 1 || (move.from.is_whole() && move.to.is_whole());
  });
  return moves;
}

}  // namespace

const ParameterLayouts& layouts_of(const Strategy& strategy, const Parameter& parameter) {
  const auto found = strategy.layouts.find(parameter.name());
  if (found != strategy.layouts.end()) return found->second;
  throw LayoutError({strategy.name, parameter.name(), "has no layout", "", "start from whole_model()"});
}

Layout on_listed_axes(const Layout& layout, const Mesh& mesh) {
  std::vector<Layout::Entry> entries;
  for (const auto& entry : layout.entries()) {
    const auto is_it = [&](const MeshAxis& axis) { return axis.name() == entry.first; };
    const bool is_factored = mesh.has(entry.first) && std::ranges::none_of(mesh.axes(), is_it);
    if (!is_factored || !entry.second.is_invariant()) entries.push_back(entry);
  }
  return Layout(std::move(entries)).completed(mesh, Invariant{});
}

std::vector<AxisMove> fill_moves(const ParameterLayouts& layouts, const Mesh& mesh) {
  return without_idle(moves_between(on_axes_of(layouts.unsharded, layouts.sharded, mesh), layouts.unsharded), mesh);
}

std::vector<AxisMove> reduce_moves(const ParameterLayouts& layouts, const Mesh& mesh) {
  return without_idle(moves_between(layouts.unsharded.dual(), on_axes_of(layouts.unsharded, layouts.sharded, mesh)),
                      mesh);
}

bool reduces_in_place(const ParameterLayouts& layouts, const Mesh& mesh) {
  return std::ranges::none_of(reduce_moves(layouts, mesh), [](const AxisMove& move) { return move.to.is_shard(); });
}

std::string way_of(const Parameter& parameter, const Strategy& strategy, const Mesh& mesh) {
  std::string way = parameter.requires_grad() ? "trained" : "frozen";
  for (const AxisMove& move : reduce_moves(layouts_of(strategy, parameter), mesh)) {
    way +=
        fmt::format(" {}:{}{}", move.axis, static_cast<int>(move.to.kind()), move.to.is_shard() ? move.to.owner() : 0);
  }
  return way;
}

Groups groups_of(const Strategy& strategy, const Mesh& mesh) {
  Groups groups;
  const Innermost innermost(strategy.units);
  std::map<std::set<int>, int> group_of;
  for (size_t u = 0; u < strategy.units.size(); ++u) {
    const Strategy::Unit& unit = strategy.units[u];
    groups.units.units.push_back({.name = unit.module->name(),
                                  .stage = unit.stage,
                                  .is_recomputed = unit.is_recomputed,
                                  .parent = innermost.parents[u],
                                  .moves_activations = unit.moves_activations});
    groups.units.groups.push_back({.name = unit.module->name()});
    group_of[{static_cast<int>(u)}] = static_cast<int>(u);
  }
  const auto num_units = static_cast<int>(strategy.units.size());
  for (int chunk = 0; chunk < strategy.chunks.num_chunks; ++chunk)
    groups.units.groups.push_back({.name = fmt::format("chunk {}", chunk), .is_chunk = true});
  groups.parameters.resize(groups.units.groups.size());
  std::vector<std::set<int>> users_of(groups.parameters.size());
  for (const auto& [parameter, users] : users_of_parameters(strategy.units, innermost)) {
    const auto chunk = strategy.chunks.chunk_of.find(parameter->name());
    int group = 0;
    if (chunk != strategy.chunks.chunk_of.end()) {
      group = num_units + chunk->second;
    } else {
      const auto [entry, is_new] = group_of.emplace(users, static_cast<int>(groups.parameters.size()));
      if (is_new) {
        groups.parameters.emplace_back();
        users_of.emplace_back();
        groups.units.groups.push_back({.name = parameter->name()});
      }
      group = entry->second;
    }
    groups.parameters[static_cast<size_t>(group)].push_back(parameter);
    users_of[static_cast<size_t>(group)].insert(users.begin(), users.end());
  }
  for (size_t group = 0; group < groups.parameters.size(); ++group) {
    const std::set<int>& users = users_of[group];
    Units::Group& about = groups.units.groups[group];
    const auto& parameters = groups.parameters[group];
    about.is_trained =
        std::any_of(parameters.begin(), parameters.end(), [](const auto* p) { return p->requires_grad(); });
    about.is_gathered = std::any_of(parameters.begin(), parameters.end(), [&](const auto* parameter) {
      return !fill_moves(layouts_of(strategy, *parameter), mesh).empty();
    });
    std::set<int> coords;  // of the pipeline
    for (const int unit : users) {
      coords.insert(strategy.coord_of(groups.units.units[static_cast<size_t>(unit)].stage));
      groups.units.units[static_cast<size_t>(unit)].groups.push_back(static_cast<int>(group));
    }
    about.is_whole = about.is_chunk && !about.is_gathered;
    about.is_joint = coords.size() > 1;
    about.is_fetched = strategy.parameters_tier != Tier::device && !parameters.empty();
    // Also on ranks that hold none of these stages.
    about.is_gathered = about.is_gathered || about.is_joint || about.is_fetched;
    // A reduction that leaves shards has brought the sums away; one in place waits for the last micro-batch.
    const bool keeps_sums = std::any_of(parameters.begin(), parameters.end(), [&](const auto* parameter) {
      return parameter->requires_grad() &&
             (!strategy.reduces_each_micro_batch || reduces_in_place(layouts_of(strategy, *parameter), mesh));
    });
    about.moves_gradients = about.is_trained && strategy.gradients_tier != Tier::device && keeps_sums;
    about.steps_early = about.is_trained && strategy.steps_early;
  }
  bool is_reached = false;  // backward reaches the first trained unit
  for (Units::Unit& unit : groups.units.units) {
    std::sort(unit.groups.begin(), unit.groups.end());
    for (const int group : unit.groups) is_reached |= groups.units.groups[static_cast<size_t>(group)].is_trained;
    unit.has_backward = is_reached;
  }
  auto& units = groups.units.units;
  for (size_t u = units.size(); u-- > 0;) {  // a parent's output has a gradient if its children's outputs have
    if (units[u].has_backward && units[u].parent >= 0) units[static_cast<size_t>(units[u].parent)].has_backward = true;
  }
  return groups;
}

Units units_of(const Strategy& strategy, const Mesh& mesh) { return groups_of(strategy, mesh).units; }

std::vector<std::vector<Parameter*>> by_way(const std::vector<Parameter*>& group, const Strategy& strategy,
                                            const Mesh& mesh) {
  std::vector<std::pair<std::string, std::vector<Parameter*>>> ways;
  for (const bool decays : {true, false}) {
    for (auto it = group.rbegin(); it != group.rend(); ++it) {
      if ((*it)->spec().decays != decays) continue;
      const std::string way = way_of(**it, strategy, mesh);
      auto found = std::find_if(ways.begin(), ways.end(), [&](const auto& entry) { return entry.first == way; });
      if (found == ways.end()) found = ways.insert(ways.end(), {way, {}});
      found->second.push_back(*it);
    }
  }
  std::stable_partition(ways.begin(), ways.end(), [](const auto& way) { return way.second.front()->requires_grad(); });
  std::vector<std::vector<Parameter*>> sets;
  for (auto& [way, parameters] : ways) sets.push_back(std::move(parameters));
  return sets;
}

}  // namespace caravan
