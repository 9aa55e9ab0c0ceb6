#include <functional>
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/operations.h"
#include "caravan/mesh/fit.h"
#include "caravan/mesh/layout.h"

namespace caravan {
namespace {

/// The arguments of one call of local_box or global_shape, for its error messages.
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

/// Splits one dim by the axes that shard it, major first. Sets `offset` and `size` to this rank's part.
void cut(const Query& query, int dim, int64_t& offset, int64_t& size) {
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
    offset += part_begin(rows, axis.coord());
    size = rows[axis.coord()];
    extents = std::move(parts);
  }
}

/// The number of rows of the whole dim, of which this rank holds `local`.
int64_t whole_rows(const Query& query, const MeshAxis& axis, const Placement& placement, int64_t local) {
  if (placement.is_even()) return local * axis.size();
  const bool is_owner = placement.owner() == axis.coord();
  if (is_owner && placement.owner_rows() < 0) return local;
  if (placement.owner() >= 0 && placement.owner_rows() < 0) {
    throw query.shape_error(fmt::format("axis {} is {}: coordinate {} holds no rows and cannot tell how many there are",
                                        axis.name(), placement.to_string(), axis.coord()),
                            "give the number in the placement: Shard{.dim, .owner, .rows}");
  }
  const auto& sizes = placement.sizes();
  const int64_t total =
      placement.owner() >= 0 ? placement.owner_rows() : std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
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
  query.check_axes();
  query.check_dims();
  Box box{std::vector<int64_t>(global_shape.size(), 0), global_shape};
  for (size_t dim = 0; dim < global_shape.size(); ++dim) {
    cut(query, static_cast<int>(dim), box.offset[dim], box.size[dim]);
  }
  return box;
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
