#include "caravan/engine/strategy.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "caravan/base/error.h"
#include "caravan/base/pattern.h"
#include "caravan/engine/flat/flat.h"
#include "caravan/engine/groups.h"

namespace caravan {
namespace {

/// `layout` with the placements of `plan` on the axes that it names, which are major to all others.
Layout planned(const Layout& plan, const Layout& layout) {
  std::vector<Layout::Entry> entries = plan.entries();
  for (const auto& entry : layout.entries()) {
    if (!plan.has(entry.first)) entries.push_back(entry);
  }
  return Layout(std::move(entries));
}

/// Rows of dim 0 that this rank holds of the sharded parameter.
int64_t sharded_rows(const Parameter& parameter, const ParameterLayouts& layouts, const Mesh& mesh) {
  return local_shape(parameter.global_shape(), layouts.sharded, mesh, parameter.name()).front();
}

/// Cuts consecutive parameters of a buffer into n parts that are equal up to a row. Returns the rows of each part for
/// each parameter.
std::vector<std::vector<int64_t>> equal_parts(const std::vector<std::pair<int64_t, int64_t>>& rows_and_row, int n) {
  int64_t total = 0;
  for (const auto& [rows, row] : rows_and_row) total += FlatLayout::aligned(rows * row);
  std::vector<std::vector<int64_t>> sizes;
  int64_t begin = 0;
  for (const auto& [rows, row] : rows_and_row) {
    std::vector<int64_t> own;
    int64_t done = 0;
    for (int k = 1; k <= n; ++k) {
      const double cut = static_cast<double>(total) * k / n - static_cast<double>(begin);
      const auto nearest = static_cast<int64_t>(std::llround(cut / static_cast<double>(std::max<int64_t>(row, 1))));
      const int64_t end = k == n ? rows : std::clamp(nearest, done, rows);
      own.push_back(end - done);
      done = end;
    }
    sizes.push_back(std::move(own));
    begin += FlatLayout::aligned(rows * row);
  }
  return sizes;
}

std::vector<int> sorted(std::vector<int> numbers) {
  std::ranges::sort(numbers);
  return numbers;
}

void check_stages(const std::vector<int>& stages, size_t num_units, const std::vector<int>& coords,
                  const MeshAxis& axis) {
  const auto refuse = [&](const std::string& fact) {
    throw UsageError({"pipeline", "stages", fact, axis.where(), "give each unit a stage: 0, .., 0, 1, .., in order"});
  };
  if (stages.size() != num_units) refuse(fmt::format("{} stages for {} units", stages.size(), num_units));
  int last = 0;
  for (const int stage : stages) {
    if (stage != last && stage != last + 1) refuse(fmt::format("stage {} follows stage {}", stage, last));
    last = stage;
  }
  std::set<int> used;
  for (const int coord : coords) {
    if (coord >= 0 && coord < axis.size()) used.insert(coord);
  }
  if (stages.front() != 0 || last + 1 != static_cast<int>(coords.size()) ||
      static_cast<int>(used.size()) != axis.size()) {
    refuse(fmt::format("{} stages on axis {} of size {}, at coordinates [{}]", last + 1, axis.name(), axis.size(),
                       fmt::join(coords, ", ")));
  }
}

/// The coordinates of the pipeline whose units use each parameter, that of its first stage first.
std::map<std::string, std::vector<int>> users_of_parameters(const Strategy& strategy, const Mesh& mesh) {
  std::map<std::string, std::vector<int>> users;
  const Groups groups = groups_of(strategy, mesh);
  for (const Units::Unit& unit : groups.units.units) {
    for (const int group : unit.groups) {
      for (const Parameter* parameter : groups.parameters[static_cast<size_t>(group)]) {
        std::vector<int>& coords = users[parameter->name()];
        const int coord = strategy.coord_of(unit.stage);
        if (std::ranges::find(coords, coord) == coords.end()) coords.push_back(coord);
      }
    }
  }
  return users;
}

}  // namespace

bool Strategy::counts_loss(const Mesh& mesh) const {
  return std::ranges::all_of(loss_layout.entries(), [&](const Layout::Entry& entry) {
    return !entry.second.is_invariant() || mesh[entry.first].coord() == 0;
  });
}

Strategy whole_model(Module& model, const Mesh& mesh) {
  Strategy strategy;
  strategy.name = "whole_model";
  for (Module* block : model.blocks()) strategy.units.push_back({.module = block});
  const Layout whole = Layout::all(mesh, Invariant{});
  for (const Parameter* parameter : model.parameters()) {
    const bool is_laid_out = parameter->sharded().defined();
    const Layout rest = is_laid_out ? on_listed_axes(parameter->sharded_layout(), mesh) : whole;
    const Layout leaf = is_laid_out ? on_listed_axes(parameter->unsharded_layout(), mesh) : whole;
    strategy.layouts.emplace(parameter->name(), ParameterLayouts{rest, leaf});
  }
  strategy.loss_layout = whole;
  strategy.batch_layout = whole;
  return strategy;
}

void add_plan(Strategy& strategy, std::shared_ptr<const AppliedPlan> plan) {
  for (const auto& [name, layouts] : plan->layouts()) {
    ParameterLayouts& own = strategy.layouts.at(name);
    own.sharded = planned(layouts.sharded, own.sharded);
    own.unsharded = planned(layouts.unsharded, own.unsharded);
  }
  strategy.loss_layout = planned(plan->loss_layout(), strategy.loss_layout);
  strategy.plan = std::move(plan);
}

void add_data_axis(Strategy& strategy, const Mesh& mesh, const std::string& axis) {
  (void)mesh[axis];  // throws for an axis that does not exist
  for (auto& [name, layouts] : strategy.layouts) layouts.unsharded = layouts.unsharded.moved(axis, Replicate{});
  strategy.loss_layout = strategy.loss_layout.moved(axis, Partial{});
  strategy.batch_layout = strategy.batch_layout.moved(axis, Shard{0});
}

void move_activations(Strategy& strategy, Tier tier) {
  strategy.activations_tier = tier;
  for (Strategy::Unit& unit : strategy.units) {
    unit.moves_activations = tier != Tier::device && &unit != &strategy.units.back();
  }
}

void set_unsharded_memory(Strategy& strategy, UnshardedMemory memory) {
  if (!strategy.stashes_weights()) strategy.unsharded_memory = memory;
}

void check_invariant(const Strategy& strategy, const Mesh& mesh, const std::string& axis,
                     const std::string& technique) {
  for (const auto& [name, layouts] : strategy.layouts) {
    // A shard from another wrapping is gathered and cut again; one that is computed with belongs to a plan.
    if (mesh[axis].size() == 1 || layouts.sharded[axis].is_invariant() || layouts.unsharded[axis].is_replicate())
      continue;
    throw LayoutError({technique, name, "is not invariant on axis " + axis,
                       mesh.where() + ", layout " + layouts.sharded.to_string(),
                       "leave axis " + axis + " out of its layout"});
  }
}

void add_units(Strategy& strategy, const std::set<const Module*>& modules) {
  std::map<const Module*, Strategy::Unit> units_of;
  for (const Strategy::Unit& unit : strategy.units) units_of.emplace(unit.module, unit);
  std::set<const Module*> done;
  std::vector<Strategy::Unit> units;
  for (const Strategy::Unit& unit : strategy.units) {
    for (Module* module : unit.module->modules()) {  // parents first, in order
      const auto known = units_of.find(module);
      if (known == units_of.end() && !modules.contains(module)) continue;
      if (!done.insert(module).second) continue;
      units.push_back(known != units_of.end() ? known->second : Strategy::Unit{.module = module, .stage = unit.stage});
    }
  }
  strategy.units = std::move(units);
}

void split_units(Strategy& strategy, const std::vector<std::string>& patterns) {
  std::set<std::string> unused(patterns.begin(), patterns.end());
  std::set<std::string> idle = unused;  // those that match nothing but units
  const auto fits = [&](const Module& module, bool is_unit) {
    bool is_match = false;
    for (const std::string& pattern : patterns) {
      if (!matches_pattern(pattern, module.name())) continue;
      is_match = true;
      unused.erase(pattern);
      if (!is_unit) idle.erase(pattern);
    }
    return is_match;
  };
  std::vector<std::string> names;
  std::set<const Module*> already, chosen;
  for (const Strategy::Unit& unit : strategy.units) already.insert(unit.module);
  for (const Strategy::Unit& unit : strategy.units) {
    const bool is_inside_a_match = fits(*unit.module, /*is_unit=*/true);
    names.push_back(unit.module->name());
    const std::vector<Module*> modules = unit.module->modules();
    std::set<const Module*> inside;
    for (size_t i = 1; i < modules.size(); ++i) {
      names.push_back(modules[i]->name());
      const bool is_unit = is_inside_a_match || already.contains(modules[i]);
      if (!fits(*modules[i], is_unit) || is_unit || inside.contains(modules[i])) continue;
      if (!modules[i]->is_run()) {
        throw UsageError({strategy.name, "units", modules[i]->name() + " is not run by itself", "",
                          "name the whole layer of experts, such as '*.mlp.experts'"});
      }
      for (const Module* below : modules[i]->modules()) inside.insert(below);
      chosen.insert(modules[i]);
    }
  }
  if (!unused.empty()) {
    throw UsageError({strategy.name, "units", "no module's name fits the pattern '" + *unused.begin() + "'", "",
                      "the nearest is '" + nearest_pattern(*unused.begin(), names) + "'"});
  }
  if (!idle.empty()) {
    throw UsageError({strategy.name, "units",
                      "the pattern '" + *idle.begin() + "' fits only modules that are units already", "",
                      "leave it out: without it they are the same units"});
  }
  add_units(strategy, chosen);
}

void shard_at_rows(Strategy& strategy, const Mesh& mesh, const std::string& axis, int num_parts) {
  const int num_ranks = mesh[axis].size();
  Strategy even = strategy;  // the order in the flat buffers does not depend on where they are cut
  for (const auto& group : groups_of(strategy, mesh).parameters) {
    for (const Parameter* parameter : group) {
      if (parameter->global_shape().empty()) continue;
      ParameterLayouts& layouts = even.layouts.at(parameter->name());
      layouts.sharded = layouts.sharded.moved(axis, Shard{0});
    }
  }
  lay_out_chunks(strategy, even, mesh, num_parts == 0 ? num_ranks : num_parts);
  const Groups groups = groups_of(strategy, mesh);
  for (const auto& group : groups.parameters) {
    for (auto set : by_way(group, even, mesh)) {
      std::erase_if(set, [](const Parameter* parameter) { return parameter->global_shape().empty(); });
      std::vector<std::pair<int64_t, int64_t>> rows_and_row;
      for (const Parameter* parameter : set) {
        const ParameterLayouts& layouts = strategy.layouts.at(parameter->name());
        const Layout whole = layouts.sharded.moved(axis, Invariant{});
        const Box box{{}, local_shape(parameter->global_shape(), whole, mesh, parameter->name())};
        const int64_t rows = box.size.front();
        rows_and_row.emplace_back(rows, rows == 0 ? 0 : box.num_elements() / rows);
      }
      auto sizes = equal_parts(rows_and_row, num_parts == 0 ? num_ranks : num_parts);
      for (size_t i = 0; i < set.size(); ++i) {
        sizes[i].resize(static_cast<size_t>(num_ranks), 0);
        ParameterLayouts& layouts = strategy.layouts.at(set[i]->name());
        layouts.sharded = layouts.sharded.moved(axis, Shard{0, sizes[i]});
      }
    }
  }
}

void add_stages(Strategy& strategy, Mesh& mesh, const std::string& axis, const std::vector<int>& stage_of_unit,
                std::vector<int> rank_of_stage) {
  if (rank_of_stage.empty()) {
    rank_of_stage.resize(static_cast<size_t>(mesh[axis].size()));
    std::iota(rank_of_stage.begin(), rank_of_stage.end(), 0);
  }
  check_stages(stage_of_unit, strategy.units.size(), rank_of_stage, mesh[axis]);
  for (size_t u = 0; u < stage_of_unit.size(); ++u) strategy.units[u].stage = stage_of_unit[u];
  strategy.pipeline_axis = axis;
  strategy.rank_of_stage = std::move(rank_of_stage);
  strategy.loss_layout = strategy.loss_layout.moved(axis, Partial{});
  const auto users = users_of_parameters(strategy, mesh);
  std::map<std::vector<int>, std::string> joint;  // in sorted order: every rank makes the same communicators
  for (const auto& [name, coords] : users) {
    if (coords.size() > 1) joint.emplace(sorted(coords), axis);
  }
  for (auto& [coords, name] : joint) {
    if (static_cast<int>(coords.size()) == mesh[axis].size()) continue;
    mesh = mesh.part(axis, coords);
    name = fmt::format("{}{{{}}}", axis, fmt::join(coords, ","));
  }
  for (const auto& unit : strategy.units) {
    for (const Parameter* parameter : unit.module->parameters()) {
      const std::vector<int>& coords = users.at(parameter->name());
      ParameterLayouts& layouts = strategy.layouts.at(parameter->name());
      if (layouts.sharded[axis].is_shard()) continue;  // another unit of the same stages has changed it
      if (parameter->global_shape().empty()) {
        throw LayoutError({"pipeline", parameter->name(), "a scalar cannot be stored on a stage", mesh.where(),
                           "give it the shape [1]"});
      }
      const Shard on_stage{.dim = 0, .owner = coords.front(), .rows = sharded_rows(*parameter, layouts, mesh)};
      layouts.sharded = layouts.sharded.moved(axis, on_stage);
      if (coords.size() == 1) {
        layouts.unsharded = layouts.unsharded.moved(axis, on_stage);
        continue;
      }
      const std::string& shared = joint.at(sorted(coords));
      if (!mesh.has(shared)) {  // this rank holds none of the stages that share it
        layouts.unsharded = layouts.unsharded.moved(axis, on_stage);
        continue;
      }
      std::vector<Layout::Entry> entries;
      for (const auto& entry : layouts.unsharded.entries()) {
        if (entry.first != axis) entries.push_back(entry);
      }
      entries.emplace_back(shared, Replicate{});
      layouts.unsharded = Layout(std::move(entries));
    }
  }
}

}  // namespace caravan
