#include "caravan/module/plan_rows.h"

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
      const Layout invariant = on_axes({}, parameter->name());
      result_.parameters.emplace(parameter->name(), PlanRows::OfParameter{invariant, invariant, invariant});
      check(*parameter);
    }
    if (plan_.inputs.size() > num_inputs) {
      throw UsageError({"plan", plan_.name,
                        fmt::format("lays out {} inputs, the model is given {}", plan_.inputs.size(), num_inputs), "",
                        "give a layout for each input at most"});
    }
    for (size_t i = 0; i < num_inputs; ++i) {
      result_.inputs.push_back(
          on_axes(i < plan_.inputs.size() ? plan_.inputs[i] : Layout{}, fmt::format("input {}", i)));
    }
    return std::move(result_);
  }

 private:
  void check_axes() const {
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
      PlanRows::OfParameter layouts{.rest = on_axes(row.rest, parameter->name()), .leaf = {}, .compute = {}};
      layouts.leaf = row.leaf ? on_axes(*row.leaf, parameter->name()) : layouts.rest;
      layouts.compute = row.compute ? on_axes(*row.compute, parameter->name()) : layouts.leaf;
      const auto [known, is_new] = result_.parameters.emplace(parameter->name(), layouts);
      if (!is_new && !(known->second == layouts)) {
        refuse_contradiction(parameter->name(), known->second.to_string(), layouts.to_string());
      }
      return;
    }
    throw UsageError({"plan", plan_.name, fmt::format("module '{}' has no parameter '{}'", module.name(), row.name), "",
                      names.empty() ? "remove it from the row" : "the nearest is '" + nearest(row.name, names) + "'"});
  }

  void merge(std::vector<std::optional<Layout>>& known, const std::vector<std::optional<Layout>>& more,
             const std::string& what) const {
    known.resize(std::max(known.size(), more.size()));
    for (size_t i = 0; i < more.size(); ++i) {
      if (!more[i]) continue;
      const std::string port = fmt::format("{} {}", what, i);
      const Layout layout = on_axes(*more[i], port);
      if (known[i] && !(*known[i] == layout)) refuse_contradiction(port, known[i]->to_string(), layout.to_string());
      known[i] = layout;
    }
  }

  [[noreturn]] void refuse_contradiction(const std::string& what, const std::string& one,
                                         const std::string& other) const {
    throw UsageError({"plan", plan_.name, "two rows lay out " + what + " differently", "",
                      fmt::format("remove one of them: {}, or {}", one, other)});
  }

  /// The layout on all axes of the plan.
  Layout on_axes(const Layout& layout, const std::string& what) const {
    std::vector<Layout::Entry> entries = layout.entries();
    for (const auto& [axis, placement] : entries) {
      if (std::find(plan_.axes.begin(), plan_.axes.end(), axis) != plan_.axes.end()) continue;
      throw UsageError({"plan", plan_.name, fmt::format("{} is laid out on {}, not an axis of the plan", what, axis),
                        "",
                        plan_.axes.empty() ? "add it to the axes of the plan" : "its axes are " + join(plan_.axes)});
    }
    for (const std::string& axis : plan_.axes) {
      if (!layout.has(axis)) entries.emplace_back(axis, Invariant{});
    }
    return Layout(std::move(entries));
  }

  void check(const Parameter& parameter) const {
    const auto& [rest, leaf, compute] = result_.parameters.at(parameter.name());
    for (const std::string& axis : plan_.axes) {
      if (rest[axis].is_replicate() || rest[axis].is_partial()) {
        throw LayoutError({"plan", parameter.name(), fmt::format("rests {} on {}", rest[axis].to_string(), axis), "",
                           "let it rest I or S, and make it so in its leaf or compute"});
      }
      if (leaf[axis].is_partial()) {
        throw LayoutError({"plan", parameter.name(), fmt::format("its leaf is P on {}", axis), "",
                           "let the leaf be I, and make it P in compute"});
      }
    }
    for (const Layout* layout : {&rest, &leaf, &compute}) {
      local_box(parameter.global_shape(), *layout, mesh_, parameter.name());
    }
  }

  const Plan& plan_;
  Module& model_;
  const Mesh& mesh_;
  PlanRows result_;
};

}  // namespace

std::string PlanRows::OfParameter::to_string() const {
  std::string text = rest.to_string();
  if (!(leaf == rest)) text += ", leaf " + leaf.to_string();
  if (!(compute == leaf)) text += ", compute " + compute.to_string();
  return text;
}

PlanRows resolve_rows(const Plan& plan, Module& model, const Mesh& mesh, size_t num_inputs) {
  return Resolver(plan, model, mesh).resolve(num_inputs);
}

}  // namespace caravan
