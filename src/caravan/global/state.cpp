#include "caravan/global/state.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/tensor.h"
#include "caravan/global/creating.h"
#include "caravan/global/leaf_gradients.h"
#include "caravan/global/op_info.h"
#include "caravan/mesh/fit.h"

namespace caravan {
namespace {

/// Shards first, by dim, then the other axes in the order of the mesh: equal layouts get equal texts.
Layout in_order(const Layout& layout, const std::vector<std::string>& axes) {
  int num_dims = 0;
  for (const auto& [axis, placement] : layout.entries()) {
    if (placement.is_shard()) num_dims = std::max(num_dims, placement.dim() + 1);
  }
  std::vector<Layout::Entry> entries;
  for (int dim = 0; dim < num_dims; ++dim) {
    for (const std::string& axis : layout.sharding(dim)) entries.emplace_back(axis, layout[axis]);
  }
  for (const std::string& axis : axes) {
    if (!layout[axis].is_shard()) entries.emplace_back(axis, layout[axis]);
  }
  return Layout(std::move(entries));
}

Layout with_placement(const Layout& layout, const std::string& axis, const Placement& placement) {
  std::vector<Layout::Entry> entries = layout.entries();
  for (auto& [name, own] : entries) {
    if (name == axis) own = placement;
  }
  return Layout(std::move(entries));
}

/// The rows of a dim on each coordinate of the axes that have cut it so far: all ranks decide by these, not by theirs.
using Parts = std::vector<int64_t>;

bool all_divide(const Parts& parts, int64_t by) {
  return std::ranges::all_of(parts, [by](int64_t rows) { return rows % by == 0; });
}

/// What `placement` does to a dim of these parts: even if the parts divide, with balanced sizes if there is one part.
/// Nothing if parts that differ would be cut into sizes that differ, which no layout says.
std::optional<Shard> shard_of(const Placement& placement, const Parts& parts, int n) {
  Shard shard{placement.dim(), placement.sizes(), placement.owner(), placement.owner_rows(), placement.blocks()};
  const int blocks = std::max(1, shard.blocks);
  if (placement.is_even() && (all_divide(parts, static_cast<int64_t>(n) * blocks) || parts[0] % blocks != 0))
    return shard;
  if (!std::ranges::all_of(parts, [&](int64_t rows) { return rows == parts[0]; })) return std::nullopt;
  if (placement.is_even()) shard.sizes = parts_of(parts[0] / blocks, n);
  return shard;
}

}  // namespace

size_t KeyHash::operator()(std::span<const int64_t> key) const noexcept {
  uint64_t hash = 0x9e3779b97f4a7c15ULL;
  for (const int64_t value : key) {
    hash ^= static_cast<uint64_t>(value);
    hash *= 0xff51afd7ed558ccdULL;
    hash ^= hash >> 32;
  }
  return hash;
}

GlobalState::GlobalState(Mesh mesh, const GlobalOptions& options)
    : mesh_(std::move(mesh)),
      options_(options),
      places_(places_of(mesh_)),
      drawn_{.seed = options.seed, .calls = 0},
      gradients_(std::make_unique<LeafGradients>()) {
  for (const MeshAxis& axis : mesh_.axes()) {
    const auto& given = options.axes;
    if (given.empty() || std::ranges::find(given, axis.name()) != given.end()) axes_.push_back(axis.name());
  }
  for (const std::string& axis : options.axes) {
    if (!is_absent_axis(mesh_, axis)) mesh_[axis];  // throws, naming those that there are
  }
  whole_ = intern(completed({}));
}

GlobalState::~GlobalState() = default;

OpInfo& GlobalState::op_info(const c10::OperatorHandle& op) {
  std::unique_ptr<OpInfo>& info = ops_[&op.schema()];
  if (info == nullptr) info = std::make_unique<OpInfo>(op);
  return *info;
}

void GlobalState::count_whole(const std::string& op, const std::string& why, int64_t bytes) {
  WholeOp& entry = whole_ops_[op + " " + why];
  entry.op = op;
  entry.why = why;
  ++entry.calls;
  entry.bytes += bytes;
}

std::vector<WholeOp> GlobalState::whole_ops() const {
  std::vector<WholeOp> all;
  for (const auto& [key, entry] : whole_ops_) all.push_back(entry);
  return all;
}

std::string GlobalState::report() const {
  std::string text;
  for (const auto& [key, entry] : whole_ops_) {
    text += fmt::format("{:<40} {:>6} calls {:>12} bytes more  {}\n", entry.op, entry.calls, entry.bytes, entry.why);
  }
  return text;
}

bool is_absent_axis(const Mesh& mesh, std::string_view axis) {
  static constexpr std::array<std::string_view, 5> kOfSession{"dp", "pp", "ep", "cp", "tp"};
  return !mesh.has(axis) && std::ranges::find(kOfSession, axis) != kOfSession.end();
}

void GlobalState::check_axes(const std::vector<std::string>& axes, std::string_view what) const {
  for (const std::string& axis : axes) {
    if (is_absent_axis(mesh_, axis)) continue;
    mesh_[axis];  // throws, naming those of the mesh
    if (std::ranges::find(axes_, axis) != axes_.end()) continue;
    throw UsageError({std::string(what.empty() ? "global" : what), "axis " + axis,
                      "is not among the axes of this context: each coordinate on it has tensors of its own",
                      mesh_.where(),
                      "use " + join(axes_) + ", or make the context with this axis (GlobalOptions::axes)"});
  }
}

Layout GlobalState::completed(const Layout& layout) const {
  std::vector<Layout::Entry> entries = layout.entries();
  std::erase_if(entries, [&](const Layout::Entry& entry) { return is_absent_axis(mesh_, entry.first); });
  if (options_.axes.empty()) return Layout(std::move(entries)).completed(mesh_, Replicate{});
  for (const std::string& axis : axes_) {
    if (!layout.has(axis)) entries.emplace_back(axis, Replicate{});
  }
  return Layout(std::move(entries));
}

const Placed* GlobalState::intern(const Layout& given) {
  const Layout layout = in_order(given, axes_);
  std::string text = layout.to_string();
  const auto found = layouts_.find(text);
  if (found != layouts_.end()) return found->second.get();
  auto placed = std::make_unique<Placed>(Placed{layout, true});
  for (const auto& [axis, placement] : layout.entries()) {
    placed->is_whole &= placement.is_replicate();
    placed->is_even &= !placement.is_shard() || placement.is_even();
  }
  return layouts_.emplace(std::move(text), std::move(placed)).first->second.get();
}

const Placed* GlobalState::placed(const Layout& layout, const std::vector<int64_t>& sizes, std::string_view what) {
  std::vector<std::string> named;
  for (const auto& [axis, placement] : layout.entries()) named.push_back(axis);
  check_axes(named, what);
  const auto subject = [&] {
    return fmt::format("{} {}", what.empty() ? "tensor" : what, shape_text(sizes.data(), sizes.size()));
  };
  std::vector<Layout::Entry> entries;
  std::vector<Parts> parts;
  for (const int64_t size : sizes) parts.push_back({size});
  const Layout complete = completed(layout);
  for (const auto& [axis, placement] : complete.entries()) {
    const int n = mesh_[axis].size();
    if (placement.is_shard() && placement.dim() >= static_cast<int>(sizes.size())) {
      throw LayoutError({"global", subject(),
                         fmt::format("axis {} is {}, but there are {} dims", axis, placement.to_string(), sizes.size()),
                         mesh_.where(),
                         sizes.empty() ? "a scalar cannot be sharded: use R or P"
                                       : fmt::format("shard a dim from 0 to {}", sizes.size() - 1)});
    }
    if (!placement.is_shard() || n == 1) {  // on one rank nothing is cut, and no op needs to know
      const bool is_whole = n == 1 || placement.is_invariant();
      entries.emplace_back(axis, is_whole ? Placement(Replicate{}) : placement);
      continue;
    }
    Parts& own = parts[placement.dim()];
    const auto shard = shard_of(placement, own, n);
    if (!shard && placement.is_even()) {  // the rows of a part do not divide: all ranks of this axis keep them
      entries.emplace_back(axis, Replicate{});
      continue;
    }
    if (!shard) {
      throw ShapeError({"global", subject(), fmt::format("dim {} is cut unevenly by two axes", placement.dim()),
                        mesh_.where() + ", layout " + layout.to_string(), "cut it by one of them"});
    }
    if (const auto wrong = misfit(*shard, own[0], n, axis)) {
      throw ShapeError(
          {"global", subject(), wrong->fact, mesh_.where() + ", layout " + layout.to_string(), wrong->action});
    }
    Parts next;
    for (const int64_t rows : own) {
      for (const int64_t each : rows_of(*shard, rows, n)) {
        if (std::ranges::find(next, each) == next.end()) next.push_back(each);
      }
    }
    own = std::move(next);
    entries.emplace_back(axis, *shard);
  }
  return intern(Layout(std::move(entries)));
}

Layout agreed_layout(const at::Tensor& piece, const Layout& layout, GlobalState& state) {
  const NotCreatingGlobal plain;
  Layout agreed = state.completed(layout);
  for (int dim = 0; dim < static_cast<int>(piece.dim()); ++dim) {
    std::vector<std::string> axes = agreed.sharding(dim);
    std::ranges::reverse(axes);  // the minor one first: its parts add up to one of the major one
    int64_t rows = piece.size(dim);
    int64_t num_uneven = 0;
    for (const std::string& name : axes) {
      const MeshAxis& axis = state.mesh()[name];
      const Placement placement = agreed[name];
      const at::Tensor own = at::empty({2}, at::kLong);
      own.mutable_data_ptr<int64_t>()[0] = rows;
      own.mutable_data_ptr<int64_t>()[1] = num_uneven;
      const at::Tensor all = at::empty({2 * axis.size()}, at::kLong);
      all_gather_async(axis.comm(), own, all, {}, Call("rows of a piece")).wait();
      const int blocks = std::max(1, placement.blocks());
      std::vector<int64_t> sizes;
      rows = 0;
      for (int i = 0; i < axis.size(); ++i) {
        sizes.push_back(all.const_data_ptr<int64_t>()[2 * i] / blocks);
        rows += all.const_data_ptr<int64_t>()[2 * i];
        num_uneven = std::max(num_uneven, all.const_data_ptr<int64_t>()[2 * i + 1]);
      }
      if (std::ranges::all_of(sizes, [&](int64_t each) { return each == sizes[0]; })) continue;
      num_uneven += name == axes.back() ? 0 : 1;
      if (placement.is_even()) agreed = with_placement(agreed, name, Shard{dim, sizes, -1, -1, placement.blocks()});
    }
    if (num_uneven == 0) continue;
    throw ShapeError({"global", "a piece " + shape_text(piece.sizes().data(), piece.dim()),
                      fmt::format("dim {} is cut by two axes, and its pieces differ along axis {}", dim, axes.front()),
                      state.mesh().where(), "cut it by one axis, or into equal pieces"});
  }
  return agreed;
}

}  // namespace caravan
