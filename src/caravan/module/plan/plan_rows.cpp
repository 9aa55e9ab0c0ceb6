#include "caravan/module/plan/plan_rows.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/pattern.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

class Resolver {
 public:
  Resolver(const Plan& plan, Module& model, const Mesh& mesh) : plan_(plan), model_(model), mesh_(mesh) {}

  PlanRows resolve(size_t num_inputs) {
    check_axes();
    for (Module* module : model_.modules()) result_.modules[module->name()];
    for (const Plan::Row& row : plan_.rows) add(row);
    for (const Parameter* parameter : model_.parameters()) {
      complete(result_.parameters[parameter->name()]);
      check(*parameter);
    }
    if (plan_.inputs.size() > num_inputs) {
      throw UsageError({"plan", plan_.name,
                        fmt::format("lays out {} inputs, the model is given {}", plan_.inputs.size(), num_inputs), "",
                        "give a layout for each input at most"});
    }
    for (size_t i = 0; i < num_inputs; ++i) {
      Layout layout = i < plan_.inputs.size() ? plan_.inputs[i] : Layout{};
      check_axes(layout, fmt::format("input {}", i));
      for (const std::string& axis : plan_.axes) complete(layout, axis, Invariant{});
      result_.inputs.push_back(std::move(layout));
    }
    return std::move(result_);
  }

 private:
  static std::vector<Layout::Entry> named(const std::vector<std::string>& axes) {
    std::vector<Layout::Entry> entries;
    for (const std::string& axis : axes) entries.emplace_back(axis, Replicate{});
    return entries;
  }

  void check_axes() const {
    check_axes(Layout(named(plan_.data_axes)), "a parameter");
    for (const std::string& axis : plan_.axes) {
      if (mesh_[axis].parent().empty()) continue;
      throw UsageError({"plan", plan_.name, fmt::format("{} is a sub-axis of {}", axis, mesh_[axis].parent()),
                        mesh_.where(), "use a whole axis"});
    }
  }

  void add(const Plan::Row& row) {
    std::vector<std::string> names;
    bool is_used = false;
    for (Module* module : model_.modules()) {
      names.push_back(module->name());
      if (!matches_pattern(row.pattern, module->name())) continue;
      is_used = true;
      for (const Plan::ParameterRow& parameter : row.parameters) add(parameter, *module);
      PlanRows::OfModule& its = result_.modules[module->name()];
      merge(its.inputs, row.inputs, module->name() + ", input");
      merge(its.outputs, row.outputs, module->name() + ", output");
    }
    if (is_used) return;
    throw UsageError({"plan", plan_.name, "no module's name matches the pattern '" + row.pattern + "'", "",
                      "the nearest is '" + nearest_pattern(row.pattern, names) + "'"});
  }

  void add(const Plan::ParameterRow& row, const Module& module) {
    std::vector<std::string> names;  // within the module; a shared parameter has the dotted name of its owner
    for (const Parameter* parameter : module.own_parameters()) {
      names.push_back(parameter->name().substr(parameter->name().rfind('.') + 1));
      if (names.back() != row.name) continue;
      add(row, parameter->name());
      return;
    }
    throw UsageError({"plan", plan_.name, fmt::format("module '{}' has no parameter '{}'", module.name(), row.name), "",
                      names.empty() ? "remove it from the row" : "the nearest is '" + nearest(row.name, names) + "'"});
  }

  /// The three levels on the axes that the row names.
  void add(const Plan::ParameterRow& row, const std::string& parameter) {
    check_axes(row.sharded, parameter);
    if (row.unsharded) check_axes(*row.unsharded, parameter);
    if (row.compute) check_axes(*row.compute, parameter);
    const Layout& leaf = row.unsharded ? *row.unsharded : row.sharded;
    const Layout& compute = row.compute ? *row.compute : leaf;
    PlanRows::OfParameter layouts{row.sharded, leaf, compute};
    for (const std::string& axis : plan_.axes) {
      if (!row.sharded.has(axis) && !leaf.has(axis) && !compute.has(axis)) continue;
      complete(layouts.sharded, axis, Invariant{});
      complete(layouts.unsharded, axis, layouts.sharded[axis]);
      complete(layouts.compute, axis, layouts.unsharded[axis]);
    }
    PlanRows::OfParameter& known = result_.parameters[parameter];
    const PlanRows::OfParameter before = known;
    if (!merge(known.sharded, layouts.sharded) || !merge(known.unsharded, layouts.unsharded) ||
        !merge(known.compute, layouts.compute)) {
      refuse_contradiction(parameter, before.to_string(), layouts.to_string());
    }
  }

  static void complete(Layout& layout, const std::string& axis, const Placement& placement) {
    if (layout.has(axis)) return;
    std::vector<Layout::Entry> entries = layout.entries();
    entries.emplace_back(axis, placement);
    layout = Layout(std::move(entries));
  }

  /// Adds the axes of `more`. Returns false if one exists with another placement.
  static bool merge(Layout& known, const Layout& more) {
    for (const auto& [axis, placement] : more.entries()) {
      if (known.has(axis) && !(known[axis] == placement)) return false;
      complete(known, axis, placement);
    }
    return true;
  }

  void merge(std::vector<std::optional<Layout>>& known, const std::vector<std::optional<Layout>>& more,
             const std::string& what) const {
    known.resize(std::max(known.size(), more.size()));
    for (size_t i = 0; i < more.size(); ++i) {
      if (!more[i]) continue;
      const std::string port = fmt::format("{} {}", what, i);
      check_axes(*more[i], port);
      if (!known[i]) known[i] = Layout{};
      const std::string before = known[i]->to_string();
      if (!merge(*known[i], *more[i])) refuse_contradiction(port, before, more[i]->to_string());
    }
  }

  [[noreturn]] void refuse_contradiction(const std::string& what, const std::string& one,
                                         const std::string& other) const {
    throw UsageError({"plan", plan_.name, "two rows lay out " + what + " differently", "",
                      fmt::format("remove one of them: {}, or {}", one, other)});
  }

  void check_axes(const Layout& layout, const std::string& what) const {
    for (const auto& [axis, placement] : layout.entries()) {
      if (std::find(plan_.axes.begin(), plan_.axes.end(), axis) != plan_.axes.end()) continue;
      throw UsageError({"plan", plan_.name, fmt::format("{} is laid out on {}, not an axis of the plan", what, axis),
                        "",
                        plan_.axes.empty() ? "add it to the axes of the plan" : "its axes are " + join(plan_.axes)});
    }
  }

  /// The default: I, and R for the unsharded parameter on a data axis.
  void complete(PlanRows::OfParameter& layouts) const {
    for (const std::string& axis : plan_.axes) {
      const bool is_data = std::find(plan_.data_axes.begin(), plan_.data_axes.end(), axis) != plan_.data_axes.end();
      complete(layouts.sharded, axis, Invariant{});
      complete(layouts.unsharded, axis, is_data ? Placement(Replicate{}) : Placement(Invariant{}));
      complete(layouts.compute, axis, layouts.unsharded[axis]);
    }
  }

  void check(const Parameter& parameter) const {
    const auto& [rest, leaf, compute] = result_.parameters.at(parameter.name());
    for (const std::string& axis : plan_.axes) {
      if (rest[axis].is_replicate() || rest[axis].is_partial()) {
        throw LayoutError({"plan", parameter.name(), fmt::format("is sharded {} on {}", rest[axis].to_string(), axis),
                           "", "shard it I or S, and make it so in unsharded or compute"});
      }
      if (leaf[axis].is_partial()) {
        throw LayoutError({"plan", parameter.name(), fmt::format("its unsharded layout is P on {}", axis), "",
                           "make it I there, and P in compute"});
      }
    }
    for (const Layout* layout : {&rest, &leaf, &compute}) {
      local_shape(parameter.global_shape(), *layout, mesh_, parameter.name());  // throws
    }
  }

  const Plan& plan_;
  Module& model_;
  const Mesh& mesh_;
  PlanRows result_;
};

}  // namespace

std::string PlanRows::OfParameter::to_string() const {
  std::string text = sharded.to_string();
  if (!(unsharded == sharded)) text += ", unsharded " + unsharded.to_string();
  if (!(compute == unsharded)) text += ", compute " + compute.to_string();
  return text;
}

PlanRows resolve_rows(const Plan& plan, Module& model, const Mesh& mesh, size_t num_inputs) {
  return Resolver(plan, model, mesh).resolve(num_inputs);
}

}  // namespace caravan
