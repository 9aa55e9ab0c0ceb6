#include "caravan/engine/flat/flat.h"

#include <map>
#include <utility>

#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/engine/groups.h"

namespace caravan {
namespace {

/// The shape of the local piece of an unsharded parameter. Its layout may name part of an axis, on which it is whole.
std::vector<int64_t> unsharded_shape_of(const Parameter& parameter, const Layout& leaf, const Mesh& mesh) {
  std::vector<Layout::Entry> entries;
  for (const auto& [axis, placement] : leaf.entries()) {
    if (placement.is_shard()) entries.emplace_back(axis, placement);
  }
  return local_shape(parameter.global_shape(), Layout(std::move(entries)), mesh, parameter.name());
}

/// How one axis cuts the unsharded buffer of a bucket: major axes cut first.
struct Level {
  MeshAxis axis;
  std::vector<int64_t> counts;  ///< elements of each coordinate
  size_t last = 0;              ///< the coordinate that holds the last row so far
};

/// One parameter's range in the part of an unsharded buffer that this rank keeps.
struct Stretch {
  int64_t rows = 0;
  int64_t row = 1;  ///< elements
  int64_t gap = 0;  ///< elements after the last row
  int64_t count() const noexcept { return rows * row + gap; }
};

std::vector<int64_t> rows_of_coordinates(const Placement& shard, int64_t rows, const Level& level,
                                         const Parameter& parameter) {
  // Sizes hold at this rank's coordinates of the major axes.
  return shard.sizes().empty() ? shard.split(rows, level.axis.size(), parameter.name()) : shard.sizes();
}

/// Cuts the range of `parameter` at `level`: counts what each coordinate gets, and keeps what this one gets.
void cut(Stretch& stretch, Level& level, const Placement& shard, const Parameter& parameter) {
  const std::vector<int64_t> rows = rows_of_coordinates(shard, stretch.rows, level, parameter);
  size_t last = level.last;
  for (size_t k = 0; k < rows.size(); ++k) {
    if (rows[k] == 0) continue;
    if (shard.dim() != 0 || k < level.last || shard.blocks() > 1) {
      throw LayoutError(
          {"flat", parameter.name(),
           fmt::format("is sharded {} on axis {}: its group is not one contiguous part for each coordinate",
                       shard.to_string(), level.axis.name()),
           level.axis.where(), "cut whole groups at rows: shard_at_rows()"});
    }
    level.counts[k] += rows[k] * stretch.row;
    last = k;
  }
  level.last = last;
  if (stretch.rows > 0) level.counts[last] += stretch.gap;
  const auto coord = static_cast<size_t>(level.axis.coord());
  if (stretch.rows == 0 || coord != last) stretch.gap = 0;
  stretch.rows = rows[coord];
}

void check_rest(const Parameter& parameter, const Layout& rest, const Mesh& mesh) {
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size() == 1 || !rest.has(axis.name())) continue;
    const Placement& placement = rest[axis.name()];
    if (placement.is_shard() || placement.is_invariant()) continue;
    throw LayoutError({"flat", parameter.name(), "is " + placement.to_string() + " on axis " + axis.name(),
                       mesh.where(), "sharded parameters are I or S on each axis"});
  }
}

}  // namespace

int64_t Slot::sharded_count() const noexcept { return c10::multiply_integers(sharded_shape); }
int64_t Slot::unsharded_count() const noexcept { return c10::multiply_integers(unsharded_shape); }

bool Bucket::reduces_in_place() const noexcept {
  for (const FlatCell& cell : reduce) {
    if (cell.to.is_shard()) return false;
  }
  return true;
}

FlatLayout::FlatLayout(const Strategy& strategy, const Mesh& mesh) {
  const Groups groups = groups_of(strategy, mesh);
  units_ = groups.units;
  const int num_units = static_cast<int>(strategy.units.size());
  std::vector<int> order;
  const int num_own = num_units + strategy.chunks.num_chunks;  // of units and chunks
  for (int group = num_own; group-- > 0;) order.push_back(group);
  for (int group = num_own; group < static_cast<int>(groups.parameters.size()); ++group) order.push_back(group);
  for (const bool is_trained : {true, false}) {
    for (const int group : order) {
      for (const auto& parameters : by_way(groups.parameters[static_cast<size_t>(group)], strategy, mesh)) {
        if (parameters.front()->requires_grad() == is_trained) place_bucket(parameters, group, strategy, mesh);
      }
    }
    if (is_trained) trained_count_ = count_;
  }
}

void FlatLayout::place_bucket(const std::vector<Parameter*>& parameters, int group, const Strategy& strategy,
                              const Mesh& mesh) {
  const ParameterLayouts& example = layouts_of(strategy, *parameters.front());
  const std::vector<AxisMove> fill = fill_moves(example, mesh);
  Bucket bucket{.index = static_cast<int>(buckets_.size()),
                .group = group,
                .is_trained = parameters.front()->requires_grad(),
                .first_slot = slots_.size(),
                .num_slots = parameters.size(),
                .sharded_offset = count_};
  const bool keeps_it = strategy.keeps_frozen && !bucket.is_trained && !strategy.stashes_weights();
  bucket.keeps_leaf = (keeps_unsharded(strategy.unsharded_memory) || keeps_it) && !fill.empty();
  bucket.is_fetched = strategy.parameters_tier != Tier::device;
  bucket.is_offloaded = strategy.is_offloaded();
  bucket.gradient_is_away = bucket.is_trained && strategy.gradients_tier != Tier::device;
  bucket.keeps_leaf = bucket.keeps_leaf && !bucket.is_fetched;
  bucket.keeps_version = bucket.keeps_leaf && strategy.unsharded_memory == UnshardedMemory::versions;
  bucket.is_inside_unsharded = bucket.keeps_leaf && !bucket.keeps_version && strategy.compute_dtype == at::kFloat &&
                               strategy.values_tier() == Tier::device;
  bucket.keeps_gradient = strategy.keeps_gradients && bucket.is_trained && !fill.empty();
  const bool follows = !buckets_.empty() && !bucket.is_apart() && !buckets_.back().is_apart() &&
                       buckets_.back().is_in_place() == fill.empty();
  if (!follows) ++run_;
  std::map<std::string, Level> levels;
  for (const AxisMove& move : fill) {
    const MeshAxis& axis = mesh[move.axis];
    levels.emplace(move.axis, Level{axis, std::vector<int64_t>(static_cast<size_t>(axis.size()), 0)});
  }
  for (Parameter* parameter : parameters) {
    const ParameterLayouts& layouts = layouts_of(strategy, *parameter);
    Slot slot{.parameter = parameter, .bucket = bucket.index};
    slot.sharded_shape = local_shape(parameter->global_shape(), layouts.sharded, mesh, parameter->name());
    slot.unsharded_shape = unsharded_shape_of(*parameter, layouts.unsharded, mesh);
    slot.unsharded_offset = bucket.unsharded_count;
    const int64_t count = slot.unsharded_count();
    Stretch stretch{.gap = aligned(count) - count};
    stretch.rows = slot.unsharded_shape.empty() ? 1 : slot.unsharded_shape.front();
    stretch.row = stretch.rows == 0 ? 0 : count / stretch.rows;
    bucket.unsharded_count += stretch.count();
    const std::vector<AxisMove> moves = fill_moves(layouts, mesh);
    for (auto move = moves.rbegin(); move != moves.rend(); ++move) {  // major axes first
      cut(stretch, levels.at(move->axis), move->from, *parameter);
    }
    slot.sharded_offset = bucket.sharded_offset + bucket.sharded_count;
    bucket.sharded_count += stretch.count();
    check_rest(*parameter, layouts.sharded, mesh);
    const Range range{.offset = slot.sharded_offset,
                      .count = stretch.count(),
                      .decays = parameter->spec().decays,
                      .rule = parameter->update_rule()};
    if (bucket.is_trained && range.count > 0) add_range(range);
    index_.emplace(parameter, slots_.size());
    slots_.push_back(std::move(slot));
  }
  for (const AxisMove& move : fill) {
    bucket.fill.push_back({mesh[move.axis], move.from, move.to, levels.at(move.axis).counts});
    bucket.own_offset += bucket.fill.back().before();
  }
  for (const AxisMove& move : reduce_moves(example, mesh)) {
    const auto level = levels.find(move.axis);
    bucket.reduce.push_back(
        {mesh[move.axis], move.from, move.to, level == levels.end() ? std::vector<int64_t>() : level->second.counts});
  }
  if (units_.groups[static_cast<size_t>(group)].is_chunk) place_chunk(bucket, strategy);
  count_ = bucket.sharded_offset + aligned(bucket.sharded_count);
  if (bucket.is_trained && !ranges_.empty() && !bucket.is_apart()) {  // the gap is zero, so it may be included
    ranges_.back().count += count_ - bucket.sharded_offset - bucket.sharded_count;
  }
  buckets_.push_back(std::move(bucket));
}

/// A chunk is one bucket, and no rank has more of it than its slot holds.
void FlatLayout::place_chunk(Bucket& bucket, const Strategy& strategy) {
  const ParameterChunks& chunks = strategy.chunks;
  bucket.slot_count = chunks.elems;
  bucket.whole_count = bucket.fill.empty() ? chunks.elems : chunks.whole_elems();
  const bool is_alone = buckets_.empty() || buckets_.back().group != bucket.group;
  int64_t most = bucket.sharded_count;
  for (const FlatCell& cell : bucket.fill) {
    for (const int64_t count : cell.counts) most = bucket.fill.size() == 1 ? std::max(most, count) : most;
  }
  if (is_alone && most <= bucket.slot_count && bucket.unsharded_count <= bucket.whole_count) return;
  throw InternalError({strategy.name, units_.groups[static_cast<size_t>(bucket.group)].name,
                       fmt::format("{} elements in a slot of {}, {} in a chunk of {}", most, bucket.slot_count,
                                   bucket.unsharded_count, bucket.whole_count),
                       "", ""});
}

void FlatLayout::add_range(Range range) {
  if (std::exchange(run_of_range_, run_) == run_) {
    Range& before = ranges_.back();
    if (before.offset + before.count == range.offset && before.decays == range.decays && before.rule == range.rule) {
      before.count += range.count;
      return;
    }
  }
  ranges_.push_back(range);
}

at::Tensor FlatLayout::view(const at::Tensor& flat, const Parameter& parameter) const {
  const Slot& at = slot(parameter);
  return flat.narrow(0, at.sharded_offset, at.sharded_count()).view(at.sharded_shape);
}

at::Tensor FlatLayout::read(const FlatMemory& flat, const Parameter& parameter) const {
  const Slot& at = slot(parameter);
  return flat.read(at.sharded_offset, at.sharded_count()).view(at.sharded_shape);
}

void FlatLayout::write(const FlatMemory& flat, const Parameter& parameter, const at::Tensor& from) const {
  flat.write(slot(parameter).sharded_offset, from);
}

at::Tensor FlatLayout::view(const FlatMemory& flat, const Parameter& parameter) const {
  const Slot& at = slot(parameter);
  return flat.narrow(at.sharded_offset, at.sharded_count()).view(at.sharded_shape);
}

}  // namespace caravan
