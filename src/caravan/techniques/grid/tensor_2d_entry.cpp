#include "caravan/techniques/grid/grid_entries.h"

namespace caravan {

Entry tensor_2d_entry() {
  return {.family = "tensor_parallel",
          .name = "2d",
          .summary = "matrices and activations over both axes of a square of ranks",
          .paper = "Xu et al., arXiv 2104.05343",
          .parts = [](const Setting&, int64_t ranks) { return parts_of_grid({}, ranks); },
          .check_model = [](const Setting& setting, int64_t ranks, const ModelConfig& model,
                            const SplitParts&) { return misfit_of_grid(setting, {}, ranks, model); },
          .factors =
              [](const Setting&, int64_t ranks) {
                const auto side = static_cast<int>(grid_side({}, ranks));
                return std::vector<AxisSize>{{"row", side}, {"col", side}};
              },
          .shrink = [](Setting&, int64_t, const ModelConfig&) { return int64_t{4}; }};
}

}  // namespace caravan
