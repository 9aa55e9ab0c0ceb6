#include "caravan/techniques/tiling/tile_rows.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/registry/registry.h"

namespace caravan {
namespace {

/// An axis that cuts the rows that ranks compute with; a stage that owns all rows does not.
bool cuts_rows(const Layout::Entry& entry) { return entry.second.is_shard(0) && entry.second.owner() < 0; }

[[noreturn]] void refuse_rows(const Parameter& weight, const Layout& layout, const std::string& fact) {
  throw UsageError({"tiling", weight.name(), fact, "layout " + layout.to_string(),
                    "use rows that the ranks divide, tiling.modules without this layer, or tiling.tiles = 1"});
}

}  // namespace

void refuse_grid(const Parameter& weight) {
  throw UsageError(
      {"tiling", weight.name(), "is split by rows and columns over a grid of ranks", "",
       fmt::format("use tensor_parallel.kind = \"{}\", or tiling.tiles = 1", first_of("tensor_parallel").name)});
}

RowsOfTiles::RowsOfTiles(const Parameter& weight, const ParameterLayouts& layouts, const Mesh& mesh, int64_t row_unit)
    : weight_(weight), layouts_(layouts), row_unit_(row_unit), parts_{{0, weight.global_shape().front()}} {
  const Layout& unsharded = layouts.unsharded;
  const auto axes = std::ranges::count_if(unsharded.entries(), cuts_rows);
  const bool cuts_columns = std::ranges::any_of(unsharded.entries(), [&](const Layout::Entry& entry) {
    return entry.second.is_shard() && entry.second.dim() > 0 && mesh[entry.first].size() > 1;
  });
  if (axes > 0 && cuts_columns) refuse_grid(weight);
  for (const std::string& name : unsharded.sharding(0)) {
    const Placement& placement = unsharded[name];
    if (placement.owner() >= 0) continue;
    const MeshAxis& axis = mesh[name];
    if (placement.blocks() > 1) refuse_rows(weight, unsharded, "is split in blocks");
    if (axes > 1 && !placement.sizes().empty()) refuse_rows(weight, unsharded, "is split unevenly over two axes");
    std::vector<TileOf::Part> finer;
    for (const TileOf::Part& part : parts_) {
      int64_t begin = part.begin;
      for (const int64_t rows : placement.split(part.rows, axis.size(), weight.name())) {
        finer.push_back({begin, rows});
        begin += rows;
      }
    }
    parts_ = std::move(finer);
    own_ = own_ * static_cast<size_t>(axis.size()) + static_cast<size_t>(axis.coord());
  }
  for (const auto& [name, placement] : layouts.sharded.entries()) {
    if (cuts_rows({name, placement}) == cuts_rows({name, unsharded.has(name) ? unsharded[name] : placement})) continue;
    refuse_rows(weight, layouts.sharded, "is sharded already");
  }
}

int64_t RowsOfTiles::most_tiles() const noexcept {
  int64_t most = std::numeric_limits<int64_t>::max();
  for (const TileOf::Part& part : parts_) most = std::min(most, part.rows / row_unit_);
  return most;
}

TileOf::Part RowsOfTiles::piece(const TileOf::Part& part, int64_t tile, int64_t count) const {
  const int64_t units = part.rows / row_unit_;
  const int64_t first = units * tile / count, last = units * (tile + 1) / count;
  return {part.begin + first * row_unit_, (last - first) * row_unit_};
}

TileCut RowsOfTiles::cut(int64_t tile, int64_t count) const {
  TileCut cut{.spec = weight_.spec(), .whole = {weight_.name(), weight_.global_shape(), {}}};
  cut.spec.shape.front() = 0;
  for (const TileOf::Part& part : parts_) {
    cut.whole.parts.push_back(piece(part, tile, count));
    cut.spec.shape.front() += cut.whole.parts.back().rows;
  }
  const TileOf::Part& own = cut.whole.parts[own_];
  cut.first = own.begin - parts_[own_].begin;
  cut.count = own.rows;
  return cut;
}

ParameterLayouts RowsOfTiles::layouts(int64_t tile, int64_t count) const {
  return {layout(layouts_.sharded, tile, count), layout(layouts_.unsharded, tile, count)};
}

Layout RowsOfTiles::layout(const Layout& whole, int64_t tile, int64_t count) const {
  std::vector<int64_t> sizes;
  for (const TileOf::Part& part : parts_) sizes.push_back(piece(part, tile, count).rows);
  const bool is_even = std::ranges::adjacent_find(sizes, std::ranges::not_equal_to()) == sizes.end();
  std::vector<Layout::Entry> entries;
  for (const auto& [name, placement] : whole.entries()) {
    if (!placement.is_shard(0)) {
      entries.emplace_back(name, placement);
    } else if (placement.owner() >= 0) {
      entries.emplace_back(name, Shard{.dim = 0, .owner = placement.owner(), .rows = sizes[own_]});
    } else {
      entries.emplace_back(name, is_even ? Shard{0} : Shard{.dim = 0, .sizes = sizes});
    }
  }
  return Layout(std::move(entries));
}

}  // namespace caravan
