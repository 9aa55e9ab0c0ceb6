#include "caravan/module/plan/plan_hooks.h"

#include <algorithm>
#include <array>

#include <ATen/ops/alias.h>
#include <ATen/ops/cat.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/redistribute/redistribute.h"

namespace caravan {
namespace {

using Wanted = std::vector<std::optional<Layout>>;

std::vector<PlanSite::Port> ports_of(const Wanted& wanted, bool generates) {
  std::vector<PlanSite::Port> ports;
  for (const auto& layout : wanted) {
    ports.push_back({.wanted = layout && generates ? in_generation(*layout) : layout});
  }
  return ports;
}

/// `found` with the placements of `wanted`, in the order in which axes come to share a dim.
Layout moved(Layout found, const Layout& wanted) {
  for (const auto& [axis, placement] : wanted.entries()) found = found.moved(axis, placement);
  return found;
}

/// The layout of positions or documents, [sequence] or [batch, sequence], for activations [batch, sequence, ..].
Layout layout_of_tokens(const Layout& activations, int64_t num_dims) {
  const int missing = static_cast<int>(2 - num_dims);
  std::vector<Layout::Entry> entries;
  for (const auto& [axis, placement] : activations.entries()) {
    const bool cuts = placement.is_shard() && placement.dim() < 2 && placement.dim() >= missing;
    if (!cuts) {
      entries.emplace_back(axis, Invariant{});
      continue;
    }
    const int dim = placement.dim() - missing;
    entries.emplace_back(axis,
                         Shard{dim, placement.sizes(), placement.owner(), placement.owner_rows(), placement.blocks()});
  }
  return Layout(std::move(entries));
}

}  // namespace

Layout in_generation(const Layout& layout) {
  std::vector<Layout::Entry> entries = layout.entries();
  for (auto& [axis, placement] : entries) {
    if (placement.is_replicate() || placement.is_shard(1)) placement = Invariant{};
  }
  return Layout(std::move(entries));
}

bool PlanSite::Way::needs_hook() const {
  const auto moves = [](const Port& port) { return port.moves(); };
  return sets_index || std::any_of(inputs.begin(), inputs.end(), moves) ||
         std::any_of(outputs.begin(), outputs.end(), moves);
}

PlanHooks::PlanHooks(std::string plan, const PlanRows& rows, Mesh record)
    : plan_(std::move(plan)), mesh_(std::move(record)) {
  const auto way = [](const PlanRows::OfModule& module, bool generates) {
    return PlanSite::Way{ports_of(module.inputs, generates), ports_of(module.outputs, generates)};
  };
  for (const auto& [name, module] : rows.modules) {
    sites_.emplace(name, PlanSite{name.empty() ? "the model" : name, way(module, false), way(module, true)});
  }
}

void PlanHooks::start(const Mesh& mesh) {
  mesh_ = mesh;
  table_ = nullptr;
}

Tensors PlanHooks::run(PlanSite& site, Tensors inputs, const ForwardContext& context, const Next& next) {
  if (context.layouts != table_) {
    throw UsageError({"plan", site.name, "plan " + plan_ + " is in force on the model", mesh_.where(),
                      "put the rows of both plans into one"});
  }
  const bool generates = context.phase == Phase::generate;
  if (table_ != nullptr) generates_ |= generates;
  if (generates && !generates_) {
    throw UsageError({"plan", site.name, "plan " + plan_ + " was applied without a pass of generation", mesh_.where(),
                      "give apply() the shapes of one"});
  }
  PlanSite::Way& way = site.way(context.phase);
  pass(inputs, way.inputs, site.name, "input");
  Tensors outputs;
  if (!site.is_of_blocks && (table_ != nullptr || way.sets_index)) {
    const ForwardContext here = inside(site.name, way, inputs, context);
    if (table_ != nullptr && here.index != context.index) way.sets_index = true;
    outputs = next(std::move(inputs), here);
  } else {
    outputs = next(std::move(inputs), context);
  }
  pass(outputs, way.outputs, site.name, "output");
  return outputs;
}

void PlanHooks::pass(Tensors& tensors, std::vector<PlanSite::Port>& ports, const std::string& name, const char* kind) {
  if (table_ != nullptr) ports.resize(std::max(ports.size(), tensors.size()));
  for (size_t i = 0; i < std::min(tensors.size(), ports.size()); ++i) {
    if (table_ == nullptr && !ports[i].moves()) continue;
    const std::string what = fmt::format("{}, {} {}", name, kind, i);
    tensors[i] = table_ != nullptr ? learn(tensors[i], ports[i], what) : redistributed(tensors[i], ports[i], what);
  }
}

at::Tensor PlanHooks::learn(const at::Tensor& x, PlanSite::Port& port, const std::string& what) {
  if (!x.defined() || (!port.wanted && !table_->has(x))) return x;  // the module that computes with it refuses it
  const Layout& found = table_->of(x, what);
  if (port.found && !(*port.found == found)) {
    throw LayoutError({"plan", what,
                       fmt::format("is {} in one run of the module and {} in another of the same forward pass",
                                   port.found->to_string(), found.to_string()),
                       table_->origin(x), "redistribute it outside of the module, or use two modules"});
  }
  port.found = found;
  port.num_dims = x.dim();
  if (port.wanted) port.target = moved(found, *port.wanted);
  if (!port.moves()) return x;
  const int64_t sent = mesh_.bytes_sent();
  at::Tensor result = redistribute(x, found, *port.target, mesh_, what);
  port.bytes += mesh_.bytes_sent() - sent;
  if (result.is_same(x)) result = at::alias(x);  // other users of x see its old layout
  table_->set(
      result, *port.target,
      fmt::format("{} ({} -> {} as {})", table_->origin(x), port.found->to_string(), port.target->to_string(), what));
  return result;
}

at::Tensor PlanHooks::redistributed(const at::Tensor& x, const PlanSite::Port& port, const std::string& what) const {
  if (x.dim() != port.num_dims) {
    throw LayoutError(
        {"plan", what,
         fmt::format("has {} dims, but {} in the dry run: its layout is not known", x.dim(), port.num_dims),
         mesh_.where(), "run the model with the inputs with which plan " + plan_ + " was applied"});
  }
  return redistribute(x, *port.found, *port.target, mesh_, what);
}

/// The context for the activations of the module, laid out as its first input.
ForwardContext PlanHooks::inside(const std::string& name, const PlanSite::Way& way, const Tensors& inputs,
                                 const ForwardContext& context) {
  ForwardContext here = context;
  const Layout* layout = inputs.empty() ? nullptr : way.inputs.front().layout();
  if (layout == nullptr || inputs.front().dim() < 2 || inputs.front().dim() > 4) return here;
  const std::vector<int64_t> local = inputs.front().sizes().vec();
  const std::vector<int64_t> global = global_shape(local, *layout, mesh_, name);
  const LocalRows rows = local_rows(global, *layout, mesh_, name);
  const std::array dims{Dim::batch, Dim::sequence, local.size() == 3 ? Dim::feature : Dim::head};
  for (size_t i = 0; i < std::min(local.size(), dims.size()); ++i) {
    const DimIndex& data = context.data[static_cast<size_t>(dims[i])];
    const bool is_cut = !layout->sharding(static_cast<int>(i)).empty();
    here.set_index(dims[i], is_cut ? data.slices(rows[i], global[i]) : data);
  }
  here.positions = rows_of_tokens(context.positions, *layout, rows);
  const bool counts = !here.positions.defined() && !layout->sharding(1).empty();
  if (counts) {
    std::vector<at::Tensor> counted;
    for (const RowRun& run : rows[1]) counted.push_back(counted_up(run.begin, run.rows, inputs.front().device()));
    here.positions = counted.size() == 1 ? counted.front() : at::cat(counted);
    remember_cut(here.positions, {}, layout_of_tokens(*layout, 1));
  }
  here.documents = rows_of_tokens(context.documents, *layout, rows);
  here.token_types = rows_of_tokens(context.token_types, *layout, rows);
  return here;
}

/// The rows of the whole positions or documents, of which `given` may be a part, for activations of these rows.
at::Tensor PlanHooks::rows_of_tokens(const at::Tensor& given, const Layout& layout, const LocalRows& local) {
  if (!given.defined()) return given;
  const auto cut =
      std::find_if(cuts_.begin(), cuts_.end(), [&](const auto& each) { return each.first.is_same(given); });
  const at::Tensor whole = cut == cuts_.end() ? given : cut->second;
  if (!whole.defined()) return whole;
  const Layout of_rows = layout_of_tokens(layout, whole.dim());
  at::Tensor rows = whole;
  for (int64_t dim = 0; dim < whole.dim(); ++dim) {
    if (of_rows.sharding(static_cast<int>(dim)).empty()) continue;
    const size_t of = static_cast<size_t>(dim + 2 - whole.dim());
    std::vector<at::Tensor> runs;
    for (const RowRun& run : local[of]) runs.push_back(rows.narrow(dim, run.begin, run.rows));
    rows = runs.size() == 1 ? runs.front() : at::cat(runs, dim);
  }
  if (rows.is_same(whole)) return whole;
  remember_cut(rows, whole, of_rows);
  return rows;
}

void PlanHooks::remember_cut(const at::Tensor& rows, const at::Tensor& whole, const Layout& layout) {
  std::erase_if(cuts_, [](const auto& cut) { return cut.first.use_count() == 1; });  // no context uses it any more
  cuts_.emplace_back(rows, whole);
  if (table_ != nullptr) table_->set(rows, layout, "the positions or documents");
}

}  // namespace caravan
