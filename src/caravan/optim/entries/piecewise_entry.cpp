#include <algorithm>

#include "caravan/registry/registry.h"

namespace caravan {
namespace {

/// Linear between two points; before the first and after the last as there.
double between(const std::vector<StepPoint>& points, int64_t step) {
  if (points.empty()) return 1;
  const auto after = std::ranges::upper_bound(points, step, {}, &StepPoint::step);
  if (after == points.begin()) return points.front().value;
  if (after == points.end()) return points.back().value;
  const StepPoint& before = *(after - 1);
  const double along = static_cast<double>(step - before.step) / static_cast<double>(after->step - before.step);
  return before.value + along * (after->value - before.value);
}

}  // namespace

Entry piecewise_entry() {
  return {.family = "learning_rate",
          .name = "piecewise",
          .summary = "follows points that the recipe or a file gives, linearly between them",
          .keys = {{{"points", OnResume::listed},
                    "[step, fraction of lr] at rising steps, as the log counts them: [[0, 1.0], [1000, 0.1]]",
                    std::vector<StepPoint>{},
                    step_points({0, 1})},
                   {{"points_file", OnResume::free, AcrossRanks::differ},
                    "file of lines \"step,fraction\", read in place of points; the recipe of the run has its points",
                    std::string(),
                    any_text()}},
          .check =
              [](const Setting& setting, int64_t) {
                if (!setting.points("points").empty()) return std::optional<Misfit>();
                return std::optional(Misfit{.key = "optimizer.points",
                                            .fact = "has no points, which schedule = \"piecewise\" follows",
                                            .action = "give some: points = [[0, 1.0], [1000, 0.1]], or points_file"});
              },
          .rate = [](const Setting& setting, int64_t step, int64_t,
                     int64_t) { return between(setting.points("points"), step + 1); },
          .mistaken = {{"from_file", "'from_file' is \"piecewise\", with points_file"}}};
}

}  // namespace caravan
