#include "caravan/techniques/grid/grid_entries.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/text.h"

namespace caravan {

SplitParts parts_of_grid(const Grid& grid, int64_t ranks) {
  const int64_t side = std::max<int64_t>(grid_side(grid, ranks), 1);
  return {.heads = side, .rows = row_parts(grid, side), .widths = width_parts(grid, side)};
}

std::optional<Misfit> misfit_of_grid(const Setting& kind, const Grid& grid, int64_t ranks, const ModelConfig& model) {
  if (ranks == 1) return std::nullopt;
  if (model.moe.is_used()) {
    std::vector<std::string> others;
    for (const Entry& entry : entries_of(kind.family().name)) {
      const Setting other(kind.family().name, entry.name);
      if (entry.parts(other, 2).experts > 1) others.push_back("\"" + entry.name + "\"");
    }
    return Misfit{kind.full_name(), fmt::format("\"{}\" has no table for experts", kind.name()),
                  "use " + join(others, " or ")};
  }
  if (auto misfit = misfit_of_ranks(grid, ranks)) return misfit;
  const int64_t side = grid_side(grid, ranks);
  if (side == 1) {
    return Misfit{kind.full_name("depth"),
                  fmt::format("{} ranks with a depth of {} split no layer", ranks, grid.depth.value_or(1)),
                  "use a depth of 1"};
  }
  return misfit_of_grid(grid, model, side);
}

}  // namespace caravan
