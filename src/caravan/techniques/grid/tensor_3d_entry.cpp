#include "caravan/techniques/grid/grid_entries.h"

namespace caravan {
namespace {

constexpr Grid kCube{.dims = 3};

}  // namespace

Entry tensor_3d_entry() {
  return {.family = "tensor_parallel",
          .name = "3d",
          .summary = "operands and results of each product over all axes of a cube of ranks",
          .paper = "Bian et al., arXiv 2105.14450",
          .parts = [](const Setting&, int64_t ranks) { return parts_of_grid(kCube, ranks); },
          .check_model = [](const Setting& setting, int64_t ranks, const ModelConfig& model,
                            const SplitParts&) { return misfit_of_grid(setting, kCube, ranks, model); },
          .factors =
              [](const Setting&, int64_t ranks) {
                const auto side = static_cast<int>(grid_side(kCube, ranks));
                return std::vector<AxisSize>{{"a", side}, {"b", side}, {"c", side}};
              },
          .shrink = [](Setting&, int64_t, const ModelConfig&) { return int64_t{8}; }};
}

}  // namespace caravan
