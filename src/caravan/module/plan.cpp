#include "caravan/module/plan.h"

#include <algorithm>
#include <memory>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/record.h"
#include "caravan/mesh/fit.h"
#include "caravan/module/plan_hooks.h"
#include "caravan/module/plan_rows.h"
#include "caravan/redistribute/redistribute.h"

namespace caravan {
namespace {

void check_is_fresh(const Plan& plan, const Module& model) {
  for (const Parameter* parameter : model.parameters()) {
    if (!parameter->rest().defined() && !parameter->is_derived()) continue;
    throw UsageError({"plan", plan.name,
                      fmt::format("{} {}", parameter->name(), parameter->is_derived() ? "is derived" : "has memory"),
                      "", "apply one plan to a model, before it is materialised, quantized or pruned"});
  }
}

/// The same axes, on a world that sends nothing and counts bytes.
Mesh record_of(const Mesh& mesh, const std::vector<std::string>& axes) {
  std::vector<AxisSize> sizes;
  for (const MeshAxis& axis : mesh.axes()) sizes.push_back({axis.name(), axis.size()});
  Mesh record = Mesh::create(make_record_world(mesh.rank(), mesh.size()), sizes);
  for (const std::string& axis : axes) {
    if (!record.has(axis)) record = record.join(axis, mesh.made_of(axis));
  }
  return record;
}

at::Tensor meta(at::IntArrayRef shape, at::ScalarType type) {
  return at::empty(shape, at::TensorOptions().dtype(type).device(at::kMeta));
}

/// Gives each parameter a meta tensor in place of its compute(), for as long as it lives.
class MetaParameters {
 public:
  MetaParameters(const Module& model, const PlanRows& rows, const Mesh& mesh) : parameters_(model.parameters()) {
    for (Parameter* parameter : parameters_) {
      const Layout& layout = rows.parameters.at(parameter->name()).compute;
      parameter->set_rest(meta(local_box(parameter->global_shape(), layout, mesh).size, at::kFloat), layout);
    }
  }
  ~MetaParameters() {
    for (Parameter* parameter : parameters_) parameter->set_rest({}, {});
  }
  MetaParameters(const MetaParameters&) = delete;
  MetaParameters& operator=(const MetaParameters&) = delete;

 private:
  std::vector<Parameter*> parameters_;
};

/// Runs the model without memory; returns the layout of its first output.
Layout dry_run(Module& model, const PlanRows& rows, const Mesh& mesh, LayoutTable& table,
               const std::vector<std::vector<int64_t>>& input_shapes) {
  const MetaParameters parameters(model, rows, mesh);
  Tensors inputs;
  for (size_t i = 0; i < input_shapes.size(); ++i) {
    inputs.push_back(meta(input_shapes[i], at::kLong));
    table.set(inputs[i], rows.inputs[i], fmt::format("input {} of the model", i));
  }
  const at::NoGradGuard no_grad;
  const Tensors outputs = model.run(std::move(inputs), {.layouts = &table});
  if (outputs.empty()) throw UsageError({"plan", "", "the model has no output", "", "return the loss first"});
  return table.of(outputs.front(), "backward");
}

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
  for (const auto& [ports, kind] : {std::pair(&site.inputs, "input"), std::pair(&site.outputs, "output")}) {
    for (size_t i = 0; i < ports->size(); ++i) {
      if (!(*ports)[i].wanted || (*ports)[i].found) continue;
      throw UsageError({"plan", plan.name,
                        fmt::format("lays out {} {} of {}, but the forward pass has none", kind, i, site.name), "",
                        "remove it from the row"});
    }
  }
}

void derive(Parameter& parameter, const PlanRows::OfParameter& layouts, const Mesh& mesh) {
  if (layouts.leaf == layouts.compute) return;
  parameter.set_derivation([from = layouts.leaf, to = layouts.compute, mesh, name = parameter.name()](
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

void add_moves(Cells& cells, const std::vector<PlanSite::Port>& ports, const char* kind) {
  for (size_t i = 0; i < ports.size(); ++i) {
    if (!ports[i].moves()) continue;
    cells.emplace_back(fmt::format("  {} {}", kind, i),
                       fmt::format("{} -> {} ({})", ports[i].found->to_string(), ports[i].wanted->to_string(),
                                   ports[i].bytes == 0 ? "free" : "sends " + format_bytes(ports[i].bytes)));
  }
}

std::vector<std::string> lines_of(const Plan& plan, Module& model, const PlanRows& rows,
                                  std::map<std::string, PlanSite>& sites, const Layout& loss) {
  Cells cells{{"plan " + plan.name, "over " + join(plan.axes)}};
  for (Module* module : model.modules()) {
    const PlanSite& site = sites.at(module->name());
    const bool is_run = !site.inputs.empty() || !site.outputs.empty();
    cells.emplace_back(site.name, is_run ? layouts_of(site.inputs) + " -> " + layouts_of(site.outputs) : "not run");
    add_moves(cells, site.inputs, "input");
    add_moves(cells, site.outputs, "output");
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

AppliedPlan apply(const Plan& plan, Module& model, const Mesh& mesh,
                  const std::vector<std::vector<int64_t>>& input_shapes) {
  check_is_fresh(plan, model);
  const PlanRows rows = resolve_rows(plan, model, mesh, input_shapes.size());
  AppliedPlan applied;
  for (const auto& [name, layouts] : rows.parameters) applied.layouts_[name] = {layouts.rest, layouts.leaf};
  if (plan.axes.empty()) return applied;

  LayoutTable table;
  const Mesh record = record_of(mesh, plan.axes);
  const auto hooks = std::make_shared<PlanHooks>(plan.name, rows, record, table);
  std::vector<std::pair<PlanSite*, Hook>> installed;
  for (Module* module : model.modules()) {
    PlanSite& site = hooks->sites().at(module->name());
    installed.emplace_back(&site, module->add_hook([hooks, &site](Module&, Tensors inputs,
                                                                  const ForwardContext& context, const Next& next) {
      return hooks->run(site, std::move(inputs), context, next);
    }));
  }
  applied.loss_layout_ = dry_run(model, rows, record, table, input_shapes);
  check_loss(plan, applied.loss_layout_);
  for (auto& [site, hook] : installed) {
    check_is_used(plan, *site);
    if (site->needs_hook()) applied.hooks_.push_back(std::move(hook));
  }
  hooks->start(mesh);
  for (Parameter* parameter : model.parameters()) derive(*parameter, rows.parameters.at(parameter->name()), mesh);
  applied.lines_ = lines_of(plan, model, rows, hooks->sites(), applied.loss_layout_);
  return applied;
}

}  // namespace caravan
