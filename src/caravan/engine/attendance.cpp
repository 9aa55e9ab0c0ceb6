#include "caravan/engine/attendance.h"

#include <limits>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/calls/agree.h"

namespace caravan {

std::vector<MeshAxis> data_axes(const Strategy& strategy, const Mesh& mesh) {
  std::vector<MeshAxis> axes;
  for (const auto& [name, placement] : strategy.batch_layout.entries()) {
    if (placement.is_shard() && mesh[name].size() > 1) axes.push_back(mesh[name]);
  }
  return axes;
}

Attendance full_attendance(const Strategy& strategy, const Mesh& mesh) {
  Attendance all;
  for (const MeshAxis& axis : data_axes(strategy, mesh)) {
    all.num_coords *= axis.size();
    all.first.push_back(0);
  }
  all.num_here = all.num_coords;
  return all;
}

Attendance agree_on_attendance(const Strategy& strategy, const Mesh& mesh, bool has_batch, int num_micro_batches) {
  const std::vector<MeshAxis> axes = data_axes(strategy, mesh);
  Attendance result = full_attendance(strategy, mesh);
  int coord = 0;
  for (const MeshAxis& axis : axes) coord = coord * axis.size() + axis.coord();

  // Maxima of: the distance of the first rank from the end, micro-batches, their negative; then for each coordinate
  // whether one of its ranks has the batch, and whether one does not.
  constexpr size_t kHas = 3;
  const auto num_coords = static_cast<size_t>(result.num_coords);
  std::vector<int64_t> facts(kHas + 2 * num_coords, 0);
  facts[2] = std::numeric_limits<int64_t>::min();
  if (has_batch) {
    facts[0] = mesh.size() - mesh.rank();
    facts[1] = num_micro_batches;
    facts[2] = -num_micro_batches;
  }
  facts[(has_batch ? kHas : kHas + num_coords) + static_cast<size_t>(coord)] = 1;
  take_maxima(mesh.world(), facts, "attendance");

  result.is_here = has_batch;
  result.num_here = 0;
  result.first_rank = mesh.size() - static_cast<int>(facts[0]);
  result.num_micro_batches = static_cast<int>(facts[1]);
  int first = -1;
  for (size_t c = 0; c < num_coords; ++c) {
    const bool is_here = facts[kHas + c] == 1;
    if (is_here && facts[kHas + num_coords + c] == 1) {
      throw UsageError({strategy.name, "begin_join_step",
                        fmt::format("some of the ranks that share part {} of the batch have it, and some do not", c),
                        mesh.where(), "give ranks that differ on other than data axes the same batches"});
    }
    if (is_here && first < 0) first = static_cast<int>(c);
    if (is_here) ++result.num_here;
  }
  if (result.num_here > 0 && facts[1] != -facts[2]) {
    throw UsageError({strategy.name, "begin_join_step",
                      fmt::format("ranks announce from {} to {} micro-batches", -facts[2], facts[1]), mesh.where(),
                      "cut the batch into the same number of micro-batches on all ranks that have one"});
  }
  for (size_t i = axes.size(); i-- > 0;) {
    result.first[i] = first < 0 ? 0 : first % axes[i].size();
    first /= axes[i].size();
  }
  return result;
}

}  // namespace caravan
