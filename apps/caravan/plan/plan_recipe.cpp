#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/options/vocabulary.h"
#include "apps/caravan/plan/plan_hardware.h"
#include "apps/caravan/plan/plan_job.h"
#include "apps/caravan/plan/plan_progress.h"
#include "apps/caravan/plan/plan_timeline.h"
#include "caravan/base/error.h"
#include "caravan/base/runtime.h"
#include "caravan/base/text.h"
#include "caravan/cost/hardware.h"
#include "caravan/cost/hardware_costs.h"
#include "caravan/plan/hardware_advice.h"
#include "caravan/plan/plan_text.h"
#include "caravan/plan/predict.h"
#include "caravan/plan/search.h"
#include "caravan/plan/time_range.h"
#include "caravan/plan/twins.h"

namespace caravan::app {
namespace {

SearchResult searched(const Recipe& recipe, const Predictor& predictor, double seconds) {
  std::fflush(stdout);  // the hardware before the progress
  PlanProgress progress(seconds);
  const auto show = [&](size_t num_estimated) { progress.show(num_estimated); };
  return search_layouts(recipe, predictor, {.seconds = seconds, .progress = show});
}

void print_result(const PlannedJob& job, SearchResult& result) {
  if (result.own) {
    const Prediction& own = result.own->prediction;
    print_fact("recipe",
               fmt::format("{}: {} a step, {}", result.own->text, step_text(job, own.seconds), fit_text(own)));
  } else {
    print_fact("recipe", fmt::format("cannot run on {} ranks as it is: {}", job.num_ranks,
                                     result.own_error.substr(0, result.own_error.find('\n'))));
  }
  print_fact("layouts", fmt::format("{} counted, {} estimated{}", result.num_counted, result.estimated.size(),
                                    result.is_complete ? "" : ", not all for lack of time: --seconds"));
  const size_t num_twins = result.fits() ? drop_twins(result.best, job.num_ranks) : 0;
  std::vector<PlanRow> rows;
  for (const PlannedLayout& layout : result.best) rows.push_back({layout.text, layout.prediction});
  fmt::print("\n{}", rows_text(rows));
  if (num_twins > 0) {
    fmt::print("     and {} that differ from one of these in minor keys alone, and are no better\n", num_twins);
  }
  fmt::print("\n");
  for (const std::string& sentence : advice_of(result, job.num_ranks)) fmt::print("- {}\n", sentence);
}

/// Products of fp32 are far slower than those of 16 bit, which HardwareCosts would take for them.
void require_dtype(const Hardware& hardware, int num_ranks, const std::string& dtype) {
  if (dtype != "fp32") return;
  for (const auto& [host, device, num_devices] : hardware.used_hosts(num_ranks)) {
    if (device->product("fp32") != nullptr || device->product("tf32") != nullptr) continue;
    throw UsageError({"plan", "precision.compute", "is fp32, and " + device->name + " has no products.fp32", "",
                      "add products.fp32 to the hardware, or set precision.compute=bf16"});
  }
}

void write_recipes(const PlanArguments& arguments, const std::vector<PlannedLayout>& rows) {
  if (!arguments.write.empty()) {
    write_text(arguments.write, to_toml(rows.front().recipe));
    print_fact("recipe", "written to " + arguments.write);
  }
  if (arguments.write_rows.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(arguments.write_rows, error);  // write_text reports what fails
  for (size_t row = 0; row < rows.size(); ++row) {
    write_text(fmt::format("{}/{}.toml", arguments.write_rows, row + 1), to_toml(rows[row].recipe));
  }
  print_fact("recipes", fmt::format("{} written to {}", rows.size(), arguments.write_rows));
}

}  // namespace

int plan_recipe(const PlanArguments& arguments) {
  const Hardware hardware = hardware_of(arguments);
  Recipe recipe = load_recipe(arguments.recipe, arguments.overrides);
  const auto num_ranks = static_cast<int>(arguments.ranks ? *arguments.ranks : hardware.num_devices());
  require_dtype(hardware, num_ranks, recipe.precision.compute);
  const Runtime runtime({.intra_op_threads = 1});
  const Vocabulary vocabulary = vocabulary_of(recipe);
  recipe.model.vocabulary = vocabulary.size;
  const PlannedJob job{arguments, hardware, num_ranks, vocabulary.size};
  const HardwareCosts costs(hardware);
  const Predictor predictor(hardware, costs, num_ranks, vocabulary.size);
  fmt::print("{}", hardware_text(hardware, num_ranks));
  const auto parameters = static_cast<double>(recipe.model.num_parameters());
  print_fact("model", fmt::format("{} parameters, {} sequences of {} tokens a step, {}", format_count(parameters),
                                  recipe.train.global_batch * recipe.data.task.sequences(), recipe.model.row_length(),
                                  recipe.precision.compute));
  SearchResult result = searched(recipe, predictor, arguments.seconds);
  print_result(job, result);
  for (const std::string& sentence : hardware_advice(recipe, result, predictor)) fmt::print("- {}\n", sentence);
  if (result.best.empty()) return 5;
  const PlannedLayout& best = result.best.front();
  if (result.fits()) {
    print_fact("best", fmt::format("{} a step: nine predictions in ten are within {:.0f} %",
                                   step_text(job, best.prediction.seconds), 100 * time_error_of(hardware, num_ranks)));
    print_job(job, best);
  }
  write_recipes(arguments, result.best);
  write_timelines(job, predictor, best);
  for (const std::string& note : recipe_notes(recipe)) print_fact("note", note);
  return result.fits() ? 0 : 5;
}

}  // namespace caravan::app
