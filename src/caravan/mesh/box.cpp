#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/mesh/fit.h"
#include "caravan/mesh/layout.h"

namespace caravan {
namespace {

/// The arguments of one call of a function of layout.h, for its error messages.
struct Query {
  const char* op;
  const std::vector<int64_t>& shape;
  const Layout& layout;
  const Mesh& mesh;
  std::string_view what;

  std::string subject() const {
    const std::string shape_of = shape_text(shape.data(), shape.size());
    return what.empty() ? "tensor " + shape_of : std::string(what) + " " + shape_of;
  }
  std::string where() const { return mesh.where() + ", layout " + layout.to_string(); }
  ShapeError shape_error(const std::string& fact, const std::string& action) const {
    return ShapeError({op, subject(), fact, where(), action});
  }

  void check_axes() const {
    std::map<std::string, std::string> placed_by;
    for (const auto& [axis, placement] : layout.entries()) {
      if (!mesh.has(axis)) continue;  // of another mesh; looked up if it cuts a dim
      for (const std::string& listed : mesh.made_of(axis)) {
        const auto [other, is_new] = placed_by.emplace(listed, axis);
        if (is_new) continue;
        throw LayoutError({op, subject(), fmt::format("axes {} and {} share coordinates", other->second, axis), where(),
                           "place one of the two"});
      }
    }
  }

  void check_not_blocked() const {
    for (const auto& [axis, placement] : layout.entries()) {
      if (!placement.is_shard() || placement.blocks() == 1 || mesh[axis].size() == 1) continue;
      throw LayoutError({op, subject(),
                         fmt::format("axis {} is {}: a piece has rows of {} blocks, which are not one box", axis,
                                     placement.to_string(), placement.blocks()),
                         where(), "take its boxes: local_boxes()"});
    }
  }

  void check_dims() const {
    const int num_dims = static_cast<int>(shape.size());
    for (const auto& [axis, placement] : layout.entries()) {
      if (!placement.is_shard() || placement.dim() < num_dims) continue;
      throw LayoutError({op, subject(),
                         fmt::format("axis {} is {}, but there are {} dims", axis, placement.to_string(), num_dims),
                         where(),
                         num_dims == 0 ? "a scalar cannot be sharded: use R, I or P"
                                       : fmt::format("shard a dim from 0 to {}", num_dims - 1)});
    }
  }
};

/// Of the rows `held` by the major axes, those at the places `taken`.
std::vector<RowRun> taken_from(const std::vector<RowRun>& held, const std::vector<RowRun>& taken) {
  std::vector<RowRun> rows;
  for (const RowRun& run : taken) append_rows(rows, held, run.begin, run.rows);
  const RowRun& first = held.front();
  if (rows.empty()) rows.push_back({first.begin + std::min(taken.front().begin, first.rows), 0});
  return rows;
}

/// Splits one dim by the axes that shard it, major first. Returns this rank's rows.
std::vector<RowRun> cut(const Query& query, int dim) {
  std::vector<RowRun> held{{0, query.shape[static_cast<size_t>(dim)]}};
  int64_t size = held.front().rows;
  std::set<int64_t> extents{size};  // of all coordinates, so that every rank throws if one does not fit
  for (const auto& [name, placement] : query.layout.entries()) {
    if (!placement.is_shard(dim)) continue;
    const MeshAxis& axis = query.mesh[name];
    const bool tells_rows = !placement.sizes().empty() || placement.owner_rows() >= 0;
    if (tells_rows) extents = {size};  // those at this rank's coordinates of the major axes
    std::set<int64_t> parts;
    for (const int64_t extent : extents) {
      if (const auto wrong = misfit(placement, extent, axis.size(), name)) {
        throw query.shape_error(wrong->fact, wrong->action);
      }
      const std::vector<int64_t> rows = rows_of(placement, extent, axis.size());
      parts.insert(rows.begin(), rows.end());
    }
    const std::vector<int64_t> rows = rows_of(placement, size, axis.size());
    held = taken_from(held, runs_of(rows, placement.blocks(), axis.coord()));
    size = num_rows(held);
    extents = std::move(parts);
  }
  return held;
}

std::vector<std::vector<RowRun>> rows_of_dims(const Query& query) {
  query.check_axes();
  query.check_dims();
  std::vector<std::vector<RowRun>> rows;
  for (size_t dim = 0; dim < query.shape.size(); ++dim) rows.push_back(cut(query, static_cast<int>(dim)));
  return rows;
}

/// For pieces of one run in each dim, or without elements.
Box box_of(const std::vector<std::vector<RowRun>>& rows) {
  Box box;
  for (const std::vector<RowRun>& runs : rows) {
    box.offset.push_back(runs.front().begin);
    box.size.push_back(num_rows(runs));
  }
  return box;
}

/// The number of rows of the whole dim, of which this rank holds `local`.
int64_t whole_rows(const Query& query, const MeshAxis& axis, const Placement& placement, int64_t local) {
  if (placement.is_even()) {
    const int64_t total = local * axis.size();
    if (const auto wrong = misfit(placement, total, axis.size(), axis.name())) {
      throw query.shape_error(wrong->fact, wrong->action);
    }
    return total;
  }
  const bool is_owner = placement.owner() == axis.coord();
  if (is_owner && placement.owner_rows() < 0) return local;
  if (placement.owner() >= 0 && placement.owner_rows() < 0) {
    throw query.shape_error(fmt::format("axis {} is {}: coordinate {} holds no rows and cannot tell how many there are",
                                        axis.name(), placement.to_string(), axis.coord()),
                            "give the number in the placement: Shard{.dim, .owner, .rows}");
  }
  const auto& sizes = placement.sizes();
  const int64_t total = placement.owner() >= 0
                            ? placement.owner_rows()
                            : placement.blocks() * std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  if (const auto wrong = misfit(placement, total, axis.size(), axis.name())) {
    throw query.shape_error(wrong->fact, wrong->action);
  }
  const int64_t expected = rows_of(placement, total, axis.size())[axis.coord()];
  if (local == expected) return total;
  throw query.shape_error(
      fmt::format("dim {} has {} rows here; {} on axis {} gives coordinate {} {} rows", placement.dim(), local,
                  placement.to_string(), axis.name(), axis.coord(), expected),
      "give the sizes that the ranks hold");
}

}  // namespace

int64_t Box::num_elements() const noexcept {
  return std::accumulate(size.begin(), size.end(), int64_t{1}, std::multiplies<>());
}

Box local_box(const std::vector<int64_t>& global_shape, const Layout& layout, const Mesh& mesh, std::string_view what) {
  const Query query{"local_box", global_shape, layout, mesh, what};
  const auto rows = rows_of_dims(query);
  query.check_not_blocked();
  return box_of(rows);
}

std::vector<PieceBox> local_boxes(const std::vector<int64_t>& global_shape, const Layout& layout, const Mesh& mesh,
                                  std::string_view what) {
  const auto rows = rows_of_dims({"local_boxes", global_shape, layout, mesh, what});
  const bool is_empty = std::ranges::any_of(rows, [](const auto& runs) { return num_rows(runs) == 0; });
  if (is_empty) return {{box_of(rows), std::vector<int64_t>(rows.size(), 0)}};
  std::vector<PieceBox> boxes(1);
  for (const std::vector<RowRun>& runs : rows) {
    std::vector<PieceBox> longer;
    for (const PieceBox& box : boxes) {
      int64_t place = 0;
      for (const RowRun& run : runs) {
        PieceBox& next = longer.emplace_back(box);
        next.global.offset.push_back(run.begin);
        next.global.size.push_back(run.rows);
        next.local_offset.push_back(place);
        place += run.rows;
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

std::vector<std::vector<RowRun>> local_rows(const std::vector<int64_t>& global_shape, const Layout& layout,
                                            const Mesh& mesh, std::string_view what) {
  return rows_of_dims({"local_rows", global_shape, layout, mesh, what});
}

std::vector<int64_t> local_shape(const std::vector<int64_t>& global_shape, const Layout& layout, const Mesh& mesh,
                                 std::string_view what) {
  std::vector<int64_t> shape;
  for (const auto& runs : rows_of_dims({"local_shape", global_shape, layout, mesh, what})) {
    shape.push_back(num_rows(runs));
  }
  return shape;
}

std::vector<int64_t> global_shape(const std::vector<int64_t>& local_shape, const Layout& layout, const Mesh& mesh,
                                  std::string_view what) {
  const Query query{"global_shape", local_shape, layout, mesh, what};
  query.check_axes();
  query.check_dims();
  std::vector<int64_t> shape = local_shape;
  for (auto entry = layout.entries().rbegin(); entry != layout.entries().rend(); ++entry) {  // minor axes first
    const auto& [name, placement] = *entry;
    if (placement.is_shard()) shape[placement.dim()] = whole_rows(query, mesh[name], placement, shape[placement.dim()]);
  }
  return shape;
}

}  // namespace caravan
