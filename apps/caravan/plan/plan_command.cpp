#include <cstdio>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/options/vocabulary.h"
#include "apps/caravan/plan/plan_budget.h"
#include "apps/caravan/plan/plan_hardware.h"
#include "caravan/base/error.h"
#include "caravan/cost/published/errors.h"
#include "caravan/cost/published/predict.h"
#include "caravan/cost/published/table.h"
#include "caravan/recipe/recipe.h"

namespace caravan::app {
namespace {

constexpr double kBytesOfGib = 1 << 30;

/// Allocators have ways out that the model does not know: only a run that needs far more is called impossible; farther,
/// if its row does not say what it recomputes.
bool fits(const published::Row& row, const published::Prediction& prediction) {
  const double surely = row.text("recompute").empty() ? 3 : 1.3;
  return prediction.uncapped_bytes <= surely * prediction.device_bytes;
}

int plan_published(const std::string& file) {
  const std::vector<published::Row> rows = published::read_table(file);
  std::vector<published::Prediction> predictions;
  fmt::print("target_id,step_s,mem_gb,fits\n");
  for (const published::Row& row : rows) {
    const published::Prediction& one = predictions.emplace_back(published::predict(row));
    const std::string id = row.text("target_id");
    fmt::print("{},{:.6g},{:.4g},{}\n",
               id.empty() ? fmt::format("row {}", predictions.size()) : published::csv_field(id), one.step_seconds,
               one.memory_bytes / kBytesOfGib, fits(row, one) ? "yes" : "no");
  }
  std::fflush(stdout);
  fmt::print(stderr, "{}", published::to_text(published::errors_of(rows, predictions)));
  return 0;
}

/// Before a search, not after it.
void check_folder_of(const char* option, const std::string& path) {
  if (path.empty()) return;
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  if (::access(folder.c_str(), W_OK) == 0 && !std::filesystem::is_directory(path)) return;
  throw UsageError({"plan", option, path + " cannot be written", "", "choose a file in a folder that exists"});
}

void check_is_new(const char* option, const std::string& path) {
  if (path.empty() || !std::filesystem::exists(path)) return;
  throw UsageError({"plan", option, path + " exists", "", "choose another name"});
}

}  // namespace

std::optional<int> plan(const PlanArguments& arguments) {
  if (!arguments.published.empty()) {
    if (arguments.recipe.empty() && arguments.overrides.empty()) return plan_published(arguments.published);
    throw UsageError({"plan", "--published", "reads a table, and no recipe", "", "give one of them"});
  }
  check_is_new("--write", arguments.write);
  check_is_new("--write-rows", arguments.write_rows);
  check_folder_of("--write", arguments.write);
  check_folder_of("--write-rows", arguments.write_rows);
  check_folder_of("--trace", arguments.trace);
  check_folder_of("--svg", arguments.svg);
  check_budget(arguments, hardware_of(arguments));
  vocabulary_of(load_recipe(arguments.recipe, arguments.overrides));
  return std::nullopt;
}

}  // namespace caravan::app
