#include "caravan/optim/factored_moments.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include <ATen/ops/zeros.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/mesh/fit.h"

namespace caravan {
namespace {

constexpr const char* kRowMeans = "exp_avg_sq_row";
constexpr const char* kColumnMeans = "exp_avg_sq_col";

/// Of what all ranks of a stage hold whole.
Layout layout_of_means(const Parameter& parameter, const std::string& pipeline_axis, int64_t size) {
  std::vector<Layout::Entry> entries;
  for (const auto& [axis, placement] : parameter.sharded_layout().entries()) {
    if (axis == pipeline_axis && placement.is_shard()) {
      entries.emplace_back(axis, Shard{.dim = 0, .owner = placement.owner(), .rows = size});
    } else {
      entries.emplace_back(axis, Invariant{});
    }
  }
  return Layout(std::move(entries));
}

}  // namespace

/// The means of one parameter, laid out as if they were parameters.
struct FactoredMoments::Means {
  Means(std::string of_kind, const std::string& name, std::vector<int64_t> shape)
      : kind(std::move(of_kind)), parameter(name, {.shape = std::move(shape), .decays = false}) {}
  std::string kind;
  Parameter parameter;
};

FactoredMoments::FactoredMoments(const FlatState& state) : state_(state) {
  if (!state.mesh) throw InternalError({"optimizer", "adafactor", "the flat state is not that of an engine", "", ""});
  int64_t rows = 0, columns = 0;
  for (size_t slot = 0; slot < state.layout.slots().size(); ++slot) {
    const Parameter& parameter = *state.layout.slots()[slot].parameter;
    if (!parameter.requires_grad()) continue;
    if (parameter.tile_of() != nullptr) {
      throw UsageError({"optimizer", parameter.name(),
                        "is a tile of a matrix, of which adafactor needs whole rows and columns", state.mesh->where(),
                        "use no tiles, or AdamW"});
    }
    FactoredParameter& to = parameters_.emplace_back();
    to.slot = slot;
    to.count = parameter.num_elements();
    to.is_counted = is_counted(parameter, slot);
    if (parameter.global_shape().size() == 2 && to.count > 0) {
      to.matrices = std::max<int64_t>(parameter.spec().matrices, 1);
      to.rows = parameter.global_shape()[0] / to.matrices;
      to.columns = parameter.global_shape()[1];
    }
    if (to.matrices == 0 || !is_of_stage(parameter)) continue;
    to.row = rows;
    to.column = columns;
    rows += to.matrices * to.rows;
    columns += to.matrices * to.columns;
    add_blocks(to, parameter);
  }
  ranks_.emplace(*state.mesh, std::vector{state.pipeline_axis, state.apart_axis});
  const MemoryKindScope kind(MemoryKind::optimizer);
  rows_ = at::zeros({rows}, state.values.options());
  columns_ = at::zeros({columns}, state.values.options());
  for (const FactoredParameter& of : parameters_) {
    if (of.matrices > 0) add_means(of, *state.layout.slots()[of.slot].parameter);
  }
  std::erase_if(parameters_,
                [&](const FactoredParameter& of) { return !is_of_stage(*state.layout.slots()[of.slot].parameter); });
}

FactoredMoments::~FactoredMoments() = default;

bool FactoredMoments::is_of_stage(const Parameter& parameter) const {
  const Layout& layout = parameter.sharded_layout();
  if (state_.pipeline_axis.empty() || !layout.has(state_.pipeline_axis)) return true;
  const Placement& placement = layout[state_.pipeline_axis];
  return !placement.is_shard() || placement.owner() == (*state_.mesh)[state_.pipeline_axis].coord();
}

/// On each axis whose coordinates hold the same, one counts; parameters take turns, so that ranks share the work.
bool FactoredMoments::is_counted(const Parameter& parameter, size_t slot) const {
  const Mesh& mesh = *state_.mesh;
  std::set<std::string> cutting{state_.pipeline_axis, state_.apart_axis};
  for (const auto& [name, placement] : parameter.sharded_layout().entries()) {
    if (placement.is_shard() && mesh.has(name)) cutting.insert(mesh.made_of(name).begin(), mesh.made_of(name).end());
  }
  return std::ranges::all_of(mesh.axes(), [&](const MeshAxis& axis) {
    return cutting.contains(axis.name()) || axis.coord() == static_cast<int>(slot % static_cast<size_t>(axis.size()));
  });
}

void FactoredMoments::add_blocks(FactoredParameter& to, const Parameter& parameter) const {
  const auto held = local_rows(parameter.global_shape(), parameter.sharded_layout(), *state_.mesh, parameter.name());
  const int64_t stride = num_rows(held[1]);
  int64_t above = 0;  // rows of the piece
  for (const RowRun& run : held[0]) {
    int64_t row = run.begin;
    while (row < run.begin + run.rows) {
      const int64_t matrix = row / to.rows, end = std::min(run.begin + run.rows, (matrix + 1) * to.rows);
      int64_t before = 0;  // columns of the piece
      for (const RowRun& columns : held[1]) {
        if (columns.rows > 0) {
          to.blocks.push_back({.first = above * stride + before,
                               .rows = end - row,
                               .columns = columns.rows,
                               .stride = stride,
                               .row = to.row + row,
                               .column = to.column + matrix * to.columns + columns.begin});
        }
        before += columns.rows;
      }
      above += end - row;
      row = end;
    }
  }
}

void FactoredMoments::add_means(const FactoredParameter& of, const Parameter& parameter) {
  const auto add = [&](const char* kind, const at::Tensor& all, int64_t first, int64_t size) {
    std::vector<int64_t> shape{size};
    if (of.matrices > 1) shape.insert(shape.begin(), of.matrices);
    const Layout layout = layout_of_means(parameter, state_.pipeline_axis, shape.front());
    const int64_t held = is_of_stage(parameter) ? of.matrices * size : 0;
    const at::Tensor own = all.narrow(0, first, held).view(local_shape(shape, layout, *state_.mesh, parameter.name()));
    means_.push_back(std::make_unique<Means>(kind, parameter.name(), std::move(shape)));
    means_.back()->parameter.set_sharded(own, layout);
  };
  add(kRowMeans, rows_, of.row, of.rows);
  add(kColumnMeans, columns_, of.column, of.columns);
}

void FactoredMoments::walk(const StateOwner::Visit& visit) {
  using Spread = StatePiece::Spread;
  for (const auto& means : means_) {
    visit({.kind = StatePiece::Kind::moment,
           .name = kOptimizerTensors + means->kind + "." + means->parameter.name(),
           .tensor = means->parameter.sharded(),
           .parameter = &means->parameter,
           .spread = state_.apart_axis.empty() ? Spread::like_parameter : Spread::per_coordinate,
           .axis = state_.apart_axis,
           .combine = StatePiece::Combine::mean});
  }
}

}  // namespace caravan
