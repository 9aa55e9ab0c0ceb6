#include "caravan/techniques/grid/grid_entries.h"

namespace caravan {
namespace {

Grid grid_of_25d(const Setting& setting) { return {.depth = setting.whole("depth")}; }

}  // namespace

Entry tensor_25d_entry() {
  SettingKey depth{
      {"depth", OnResume::free}, "2.5d: grids, each with a part of the batch", int64_t{2}, whole_number({1, 1 << 20})};
  return {.family = "tensor_parallel",
          .name = "2.5d",
          .summary = "several squares of ranks, each with a part of the batch",
          .paper = "Wang et al., arXiv 2105.14500",
          .keys = {depth},
          .parts = [](const Setting& setting, int64_t ranks) { return parts_of_grid(grid_of_25d(setting), ranks); },
          .check_model = [](const Setting& setting, int64_t ranks, const ModelConfig& model,
                            const SplitParts&) { return misfit_of_grid(setting, grid_of_25d(setting), ranks, model); },
          .factors =
              [](const Setting& setting, int64_t ranks) {
                const Grid grid = grid_of_25d(setting);
                const auto side = static_cast<int>(grid_side(grid, ranks));
                return std::vector<AxisSize>{{"depth", static_cast<int>(*grid.depth)}, {"row", side}, {"col", side}};
              },
          .shrink =
              [](Setting& setting, int64_t, const ModelConfig&) {
                setting.set("depth", int64_t{2});
                return int64_t{8};
              }};
}

}  // namespace caravan
