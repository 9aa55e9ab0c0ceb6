#include "caravan/module/plan/plan.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/held_blocks.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/pattern.h"
#include "caravan/base/text.h"
#include "caravan/base/trace/path_log.h"
#include "caravan/comm/record.h"
#include "caravan/mesh/fit.h"
#include "caravan/module/plan/plan_hooks.h"
#include "caravan/module/plan/plan_rows.h"
#include "caravan/redistribute/redistribute.h"

namespace caravan {
namespace {

void check_is_fresh(const Plan& plan, const Module& model) {
  for (const Parameter* parameter : model.parameters()) {
    if (!parameter->sharded().defined() && !parameter->is_derived()) continue;
    throw UsageError({"plan", plan.name,
                      fmt::format("{} {}", parameter->name(), parameter->is_derived() ? "is derived" : "has memory"),
                      "", "apply one plan to a model, before it is materialised, quantized or pruned"});
  }
}

/// The same axes, on a world that sends nothing and counts bytes.
Mesh record_of(const Mesh& mesh) {
  std::vector<AxisSize> sizes;
  for (const MeshAxis& axis : mesh.axes()) sizes.push_back({axis.name(), axis.size()});
  Mesh record = Mesh::create(make_record_world(mesh.rank(), mesh.size()), sizes);
  for (const std::string& axis : mesh.names()) {
    if (!record.has(axis) && mesh.has(axis) && mesh[axis].parent().empty())
      record = record.join(axis, mesh.made_of(axis));
  }
  return record;
}

at::Tensor meta(at::IntArrayRef shape, at::ScalarType type) {
  return at::empty(shape, at::TensorOptions().dtype(type).device(at::kMeta));
}

/// Replaces each parameter's compute() by a meta tensor during its lifetime.
class MetaParameters {
 public:
  MetaParameters(const Module& model, const PlanRows& rows, const Mesh& mesh) : parameters_(model.parameters()) {
    for (Parameter* parameter : parameters_) {
      const Layout& layout = rows.parameters.at(parameter->name()).compute;
      parameter->set_sharded(meta(local_shape(parameter->global_shape(), layout, mesh), at::kFloat), layout);
    }
  }
  ~MetaParameters() {
    for (Parameter* parameter : parameters_) parameter->set_sharded({}, {});
  }
  MetaParameters(const MetaParameters&) = delete;
  MetaParameters& operator=(const MetaParameters&) = delete;

 private:
  std::vector<Parameter*> parameters_;
};

/// Runs the model without memory; returns the layout of its first output.
Layout dry_run(Module& model, const PlanRows& rows, const std::vector<std::vector<int64_t>>& input_shapes,
               PlanHooks& hooks, Phase phase) {
  const PathScope uncounted(nullptr);
  const bool generates = phase == Phase::generate;
  LayoutTable table(/*has_gradients=*/!generates);
  hooks.begin_dry_run(table);
  Tensors inputs;
  for (size_t i = 0; i < input_shapes.size(); ++i) {
    inputs.push_back(meta(input_shapes[i], at::kLong));
    const Layout& layout = rows.inputs[i];
    table.set(inputs[i], generates ? in_generation(layout) : layout, fmt::format("input {} of the model", i));
  }
  const at::NoGradGuard no_grad;
  // Block by block, as stages of a pipeline run them: a hook around a list of them would not enclose each.
  const Tensors outputs =
      model.run_blocks(0, model.blocks().size(), std::move(inputs), {.phase = phase, .layouts = &table});
  if (outputs.empty()) throw UsageError({"plan", "", "the model has no output", "", "return the loss first"});
  return table.of(outputs.front(), generates ? "generation" : "backward");
}

/// Hooks, and what modules were told: undone unless it is kept.
class Installation {
 public:
  Installation() = default;
  ~Installation() {
    for (auto undo = undos_.rbegin(); undo != undos_.rend(); ++undo) (*undo)();
  }
  Installation(const Installation&) = delete;
  Installation& operator=(const Installation&) = delete;

  void add(Module& module, const std::shared_ptr<PlanHooks>& hooks, const std::vector<Plan::Row>& rows) {
    PlanSite& site = hooks->sites().at(module.name());
    sites_.emplace_back(&site, module.add_hook([hooks, &site](Module&, Tensors inputs, const ForwardContext& context,
                                                              const Next& next) {
      return hooks->run(site, std::move(inputs), context, next);
    }));
    for (const Plan::Row& row : rows) {
      if (!matches_pattern(row.pattern, module.name())) continue;
      if (row.prepare) undos_.push_back(row.prepare(module));
      if (row.around) arounds_.push_back(module.add_hook(row.around));
    }
  }
  /// The hooks that have an effect.
  std::vector<Hook> keep() {
    std::vector<Hook> hooks = std::move(arounds_);
    for (auto& [site, hook] : sites_) {
      if (site->needs_hook()) hooks.push_back(std::move(hook));
    }
    undos_.clear();
    return hooks;
  }

 private:
  std::vector<std::pair<PlanSite*, Hook>> sites_;
  std::vector<Hook> arounds_;
  std::vector<std::function<void()>> undos_;
};

void check_loss(const Plan& plan, const Layout& layout) {
  for (const auto& [axis, placement] : layout.entries()) {
    if (placement.is_invariant() || placement.is_partial()) continue;
    throw LayoutError({"plan", plan.name,
                       fmt::format("the loss is {} on axis {}: each rank would count it", placement.to_string(), axis),
                       "layout " + layout.to_string(),
                       placement.is_shard() ? "sum it over the shards: P"
                                            : "reduce to I instead of R, or let the last module take I"});
  }
}

/// Rows about inputs and outputs that the forward pass does not have would be ignored.
void check_is_used(const Plan& plan, const PlanSite& site) {
  using Ports = std::vector<PlanSite::Port>;
  const auto is_found = [](const Ports& ports, size_t i) { return i < ports.size() && ports[i].found; };
  const auto check = [&](const Ports& training, const Ports& generation, const char* kind) {
    for (size_t i = 0; i < training.size(); ++i) {
      if (!training[i].wanted || training[i].found || is_found(generation, i)) continue;
      throw UsageError({"plan", plan.name,
                        fmt::format("lays out {} {} of {}, but the forward pass has none", kind, i, site.name), "",
                        "remove it from the row"});
    }
  };
  check(site.training.inputs, site.generation.inputs, "input");
  check(site.training.outputs, site.generation.outputs, "output");
}

/// The number of parts into which ranks split the rows of an activation of a generation pass.
int64_t row_parts(const std::map<std::string, PlanSite>& sites, const Mesh& mesh) {
  int64_t most = 1;
  const auto count = [&](const PlanSite::Port& port) {
    if (port.layout() == nullptr) return;
    int64_t parts = 1;
    for (const std::string& axis : port.layout()->sharding(0)) parts *= mesh[axis].size();
    most = std::lcm(most, parts);
  };
  for (const auto& [name, site] : sites) {
    for (const auto* ports : {&site.generation.inputs, &site.generation.outputs}) {
      for (const PlanSite::Port& port : *ports) count(port);
    }
  }
  return most;
}

void derive(Parameter& parameter, const PlanRows::OfParameter& layouts, const Mesh& mesh) {
  if (layouts.unsharded == layouts.compute) return;
  parameter.set_derivation([from = layouts.unsharded, to = layouts.compute, mesh, name = parameter.name()](
                               const at::Tensor& leaf) { return redistribute(leaf, from, to, mesh, name); },
                           layouts.compute);
}

// ---- text ----

using Cells = std::vector<std::pair<std::string, std::string>>;

std::string layouts_of(const std::vector<PlanSite::Port>& ports) {
  std::vector<std::string> texts;
  for (const PlanSite::Port& port : ports) texts.push_back(port.layout() == nullptr ? "?" : port.layout()->to_string());
  return join(texts);
}

bool is_found(const PlanSite::Way& way) {
  const auto has = [](const PlanSite::Port& port) { return port.found.has_value(); };
  return std::ranges::any_of(way.inputs, has) || std::ranges::any_of(way.outputs, has);
}

void add_moves(Cells& cells, const std::vector<PlanSite::Port>& ports, const char* kind) {
  for (size_t i = 0; i < ports.size(); ++i) {
    if (!ports[i].moves()) continue;
    cells.emplace_back(fmt::format("  {} {}", kind, i),
                       fmt::format("{} -> {} ({})", ports[i].found->to_string(), ports[i].target->to_string(),
                                   ports[i].bytes == 0 ? "free" : "sends " + format_bytes(ports[i].bytes)));
  }
}

std::vector<std::string> lines_of(const Plan& plan, Module& model, const PlanRows& rows,
                                  std::map<std::string, PlanSite>& sites, const Layout& loss) {
  Cells cells{{"plan " + plan.name, "over " + join(plan.axes)}};
  for (Module* module : model.modules()) {
    const PlanSite& site = sites.at(module->name());
    const bool is_run = is_found(site.training);
    const bool is_only_generation = !is_run && is_found(site.generation);
    const PlanSite::Way& way = is_only_generation ? site.generation : site.training;
    const bool is_list = !is_run && !is_only_generation && module->own_parameters().empty();
    if (is_list && module->modules().size() > 1) continue;  // blocks run one by one
    const std::string layouts = layouts_of(way.inputs) + " -> " + layouts_of(way.outputs);
    cells.emplace_back(site.name, is_run ? layouts : is_only_generation ? layouts + " (generation)" : "not run");
    add_moves(cells, way.inputs, "input");
    add_moves(cells, way.outputs, "output");
    for (const Parameter* parameter : module->own_parameters()) {
      const auto& shape = parameter->global_shape();
      cells.emplace_back("  " + parameter->name() + " " + shape_text(shape.data(), shape.size()),
                         rows.parameters.at(parameter->name()).to_string());
    }
  }
  cells.emplace_back("loss", loss.to_string());
  size_t width = 0;
  for (const auto& [what, text] : cells) width = std::max(width, what.size());
  std::vector<std::string> lines;
  for (const auto& [what, text] : cells) lines.push_back(fmt::format("{:<{}}  {}", what, width, text));
  return lines;
}

}  // namespace

std::string AppliedPlan::to_string() const { return join(lines_, "\n"); }

Plan join(Plan major, const Plan& minor) {
  for (const std::string& axis : minor.axes) {
    if (std::ranges::find(major.axes, axis) == major.axes.end()) continue;
    throw UsageError({"plan", major.name + " and " + minor.name, "both lay out axis " + axis, "",
                      "factor the axis, and give each a part of it"});
  }
  major.name += (major.name.empty() || minor.name.empty() ? "" : " ") + minor.name;
  major.axes.insert(major.axes.end(), minor.axes.begin(), minor.axes.end());
  major.data_axes.insert(major.data_axes.end(), minor.data_axes.begin(), minor.data_axes.end());
  major.rows.insert(major.rows.end(), minor.rows.begin(), minor.rows.end());
  major.inputs.resize(std::max(major.inputs.size(), minor.inputs.size()));
  for (size_t i = 0; i < minor.inputs.size(); ++i) {
    std::vector<Layout::Entry> entries = major.inputs[i].entries();
    entries.insert(entries.end(), minor.inputs[i].entries().begin(), minor.inputs[i].entries().end());
    major.inputs[i] = Layout(std::move(entries));
  }
  return major;
}

AppliedPlan apply(const Plan& plan, Module& model, const Mesh& mesh,
                  const std::vector<std::vector<int64_t>>& input_shapes,
                  const std::vector<std::vector<int64_t>>& generation_shapes) {
  check_is_fresh(plan, model);
  const PlanRows rows = resolve_rows(plan, model, mesh, input_shapes.size());
  AppliedPlan applied;
  applied.name_ = plan.name;
  for (const auto& [name, layouts] : rows.parameters) applied.layouts_[name] = {layouts.sharded, layouts.unsharded};
  if (plan.axes.empty()) return applied;

  const Mesh record = record_of(mesh);
  const auto hooks = std::make_shared<PlanHooks>(plan.name, rows, record);
  Installation installation;
  for (Module* module : model.modules()) installation.add(*module, hooks, plan.rows);
  hooks->sites().at(model.name()).is_of_blocks = model.blocks().front() != &model;
  {
    static auto* nothing = new MemoryCounter;  // a dry run is not charged to the run
    const MemoryScope uncharged(*nothing);
    const HeldBlocksScope unheld(/*ignores=*/true);
    const MetaParameters parameters(model, rows, record);
    applied.loss_layout_ = dry_run(model, rows, input_shapes, *hooks, Phase::forward);
    check_loss(plan, applied.loss_layout_);
    if (!generation_shapes.empty()) dry_run(model, rows, generation_shapes, *hooks, Phase::generate);
  }
  for (const auto& [name, site] : hooks->sites()) check_is_used(plan, site);
  applied.num_row_parts_ = row_parts(hooks->sites(), record);
  applied.hooks_ = installation.keep();
  hooks->start(mesh);
  for (Parameter* parameter : model.parameters()) derive(*parameter, rows.parameters.at(parameter->name()), mesh);
  applied.lines_ = lines_of(plan, model, rows, hooks->sites(), applied.loss_layout_);
  return applied;
}

}  // namespace caravan
