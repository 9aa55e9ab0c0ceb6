#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "caravan/base/error.h"
#include "caravan/redistribute/flat.h"
#include "caravan/redistribute/redistribute.h"

namespace caravan {
namespace {

bool is_minor(const Layout& layout, const std::string& axis, int dim) { return layout.sharding(dim).back() == axis; }

/// True if the dim on which `target` places `axis` is now sharded by exactly the axes that are major to it there.
bool is_awaited(const Layout& now, const Layout& target, const std::string& axis) {
  const int dim = target[axis].dim();
  std::vector<std::string> present = now.sharding(dim);
  std::erase(present, axis);
  std::vector<std::string> expected = target.sharding(dim);
  expected.erase(std::find(expected.begin(), expected.end(), axis), expected.end());
  return present == expected &&
         std::all_of(present.begin(), present.end(), [&](const auto& other) { return now[other] == target[other]; });
}

/// An axis is settled if it has its final placement and so do the axes that are major to it.
bool is_settled(const Layout& now, const Layout& target, const std::string& axis) {
  if (!(now[axis] == target[axis])) return false;
  if (!now[axis].is_shard()) return true;
  const std::vector<std::string> have = now.sharding(now[axis].dim());
  const std::vector<std::string> want = target.sharding(now[axis].dim());
  for (size_t i = 0; i < have.size(); ++i) {
    if (i >= want.size() || have[i] != want[i] || !(now[have[i]] == target[want[i]])) return false;
    if (have[i] == axis) return true;
  }
  return false;
}

bool may_go(const Layout& now, const Layout& target, const std::string& axis) {
  const Placement& from = now[axis];
  const Placement& to = target[axis];
  if (from.is_shard() && !is_minor(now, axis, from.dim())) return false;
  return !to.is_shard() || is_awaited(now, target, axis);
}

/// Steps that shrink the piece come first, steps that grow it last.
int rank_of(const Placement& from, const Placement& to) {
  if (to.is_shard()) return from.is_whole() ? 0 : from.is_partial() ? 1 : 2;
  return from.is_partial() ? 3 : from.is_whole() ? 4 : 5;
}

std::optional<AxisMove> next_move(const Layout& now, const Layout& target) {
  std::optional<AxisMove> best;
  std::optional<AxisMove> detour;  // for two dims that swap axes: one axis goes through R
  int best_rank = 0;
  for (const auto& [axis, from] : now.entries()) {
    if (is_settled(now, target, axis)) continue;
    if (may_go(now, target, axis)) {
      const int rank = rank_of(from, target[axis]);
      if (!best || rank < best_rank) {
        best = AxisMove{axis, from, target[axis]};
        best_rank = rank;
      }
    } else if (!detour && from.is_shard() && is_minor(now, axis, from.dim())) {
      detour = AxisMove{axis, from, Replicate{}};
    }
  }
  return best ? best : detour;
}

void check_same_axes(const Layout& layout, const Layout& to, const Mesh& mesh, const Call& call) {
  for (const auto& [a, b] : {std::pair(&layout, &to), std::pair(&to, &layout)}) {
    for (const auto& [axis, placement] : a->entries()) {
      if (b->has(axis)) continue;
      throw LayoutError({"redistribute", std::string(call.what), "axis " + axis + " is in one layout only",
                         mesh.where() + ", from " + layout.to_string() + " to " + to.to_string(),
                         "complete both layouts with the mesh"});
    }
  }
}

/// The axes of some moves in the order of an axis that is made of them: the major one first.
std::vector<std::string> in_order(std::span<const AxisMove> moves, const Layout& now, const Mesh& mesh) {
  std::vector<std::string> names;
  for (const AxisMove& move : moves) names.push_back(move.axis);
  std::vector<std::string> all;
  if (moves.front().to.is_shard()) return names;
  if (moves.front().from.is_shard()) {
    all = now.sharding(moves.front().from.dim());
  } else {
    for (const MeshAxis& axis : mesh.axes()) all.push_back(axis.name());
  }
  std::erase_if(all, [&](const auto& axis) { return std::ranges::find(names, axis) == names.end(); });
  return all;
}

/// The first of `moves`, or several that are the same move of axes that one axis of the mesh is made of: one collective
/// then sends less than one for each.
std::pair<const MeshAxis*, size_t> joint_move(std::span<const AxisMove> moves, const Layout& now, const Mesh& mesh) {
  const AxisMove& first = moves.front();
  const auto is_same = [&](const AxisMove& move) { return move.from == first.from && move.to == first.to; };
  const auto is_even = [](const Placement& placement) {
    return !placement.is_shard() || (placement.is_even() && placement.blocks() == 1);
  };
  auto count = static_cast<size_t>(std::ranges::find_if_not(moves, is_same) - moves.begin());
  if (!is_even(first.from) || !is_even(first.to) || (first.from.is_shard() && first.to.is_shard())) count = 1;
  for (; count > 1; --count) {
    if (const MeshAxis* axis = mesh.joined(in_order(moves.first(count), now, mesh))) return {axis, count};
  }
  return {&mesh[first.axis], 1};
}

/// `now` with `axis`, made of the axes of the moves, in their place.
Layout with_axis(const Layout& now, std::span<const AxisMove> moves, const MeshAxis& axis) {
  if (moves.size() == 1) return now;
  std::vector<Layout::Entry> entries = now.entries();
  std::erase_if(entries, [&](const auto& entry) {
    return std::ranges::any_of(moves, [&](const AxisMove& move) { return move.axis == entry.first; });
  });
  entries.emplace_back(axis.name(), moves.front().from);
  return Layout(std::move(entries));
}

}  // namespace

std::vector<AxisMove> moves_between(const Layout& layout, const Layout& to) {
  std::vector<AxisMove> moves;
  Layout now = layout;
  while (auto move = next_move(now, to)) {
    now = now.moved(move->axis, move->to);
    moves.push_back(std::move(*move));
  }
  return moves;
}

at::Tensor redistribute(const at::Tensor& x, const Layout& layout, const Layout& to, const Mesh& mesh,
                        const Call& call) {
  check_same_axes(layout, to, mesh, call);
  at::Tensor result = x;
  Layout now = layout;
  const std::vector<AxisMove> moves = moves_between(layout, to);
  for (std::span<const AxisMove> rest = moves; !rest.empty();) {
    const auto [axis, count] = joint_move(rest, now, mesh);
    result = redistribute(result, with_axis(now, rest.first(count), *axis), *axis, rest.front().to, call);
    for (const AxisMove& move : rest.first(count)) now = now.moved(move.axis, move.to);
    rest = rest.subspan(count);
  }
  return result;
}

}  // namespace caravan
