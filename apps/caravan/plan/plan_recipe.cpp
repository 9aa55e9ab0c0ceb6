#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/options/vocabulary.h"
#include "apps/caravan/plan/plan_hardware.h"
#include "caravan/base/error.h"
#include "caravan/base/runtime.h"
#include "caravan/base/text.h"
#include "caravan/base/trace/trace_events.h"
#include "caravan/cost/hardware.h"
#include "caravan/cost/hardware_costs.h"
#include "caravan/plan/plan_text.h"
#include "caravan/plan/predict.h"
#include "caravan/plan/search.h"

namespace caravan::app {
namespace {

void print(const char* name, const std::string& value) { fmt::print("{:<10}{}\n", name, value); }

void print_price(const Hardware& hardware, const Prediction& best, int num_ranks) {
  double of_hour = 0;
  for (int rank = 0; rank < num_ranks; ++rank) of_hour += hardware.device_of(rank).price_per_hour;
  if (of_hour <= 0) return;
  const double of_tokens = of_hour / 3600 / best.tokens_per_second * 1e9;
  print("price", fmt::format("{:.2f} an hour, {:.2f} for 1 G tokens with the best layout", of_hour, of_tokens));
}

void write_text(const std::string& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) throw ResourceError({"plan", file, "cannot be written", "", "choose another file"});
}

/// In the form of train --trace.
std::string trace_of(const std::vector<SimulatedStep::Span>& spans) {
  std::map<int, std::vector<TraceLog::Span>> of_rank;
  const auto ns = [](double seconds) { return std::llround(1e9 * seconds); };
  for (const SimulatedStep::Span& span : spans) {
    of_rank[span.rank].push_back({span.row, span.what, {}, ns(span.begin), ns(span.end)});
  }
  std::string text(kTraceBegin);
  for (const auto& [rank, own] : of_rank) {
    if (rank != of_rank.begin()->first) text += ",\n";
    text += trace_events({.rank = rank, .name = fmt::format("rank {} (predicted)", rank)}, own);
  }
  return text + std::string(kTraceEnd);
}

}  // namespace

int plan_recipe(const PlanArguments& arguments) {
  const Hardware hardware = hardware_of(arguments);
  Recipe recipe = load_recipe(arguments.recipe, arguments.overrides);
  const auto num_ranks = static_cast<int>(arguments.ranks ? *arguments.ranks : hardware.num_devices());
  const Runtime runtime({.intra_op_threads = 1});
  const Vocabulary vocabulary = vocabulary_of(recipe);
  recipe.model.vocabulary = vocabulary.size;
  const HardwareCosts costs(hardware);
  const Predictor predictor(hardware, costs, num_ranks, vocabulary.size);
  fmt::print("{}", hardware_text(hardware, num_ranks));
  const auto parameters = static_cast<double>(recipe.model.num_parameters());
  print("model", fmt::format("{} parameters, {} sequences of {} tokens a step, {}", format_count(parameters),
                             recipe.train.global_batch, recipe.model.context, recipe.precision.compute));
  const SearchResult result = search_layouts(recipe, predictor, {.seconds = arguments.seconds});
  if (result.own) {
    const Prediction& own = result.own->prediction;
    print("recipe", fmt::format("{}: {} a step, {}", result.own->text, step_seconds_text(own.seconds), fit_text(own)));
  } else {
    print("recipe", fmt::format("cannot run on {} ranks as it is: {}", num_ranks,
                                result.own_error.substr(0, result.own_error.find('\n'))));
  }
  print("layouts", fmt::format("{} counted, {} estimated{}", result.num_counted, result.estimated.size(),
                               result.is_complete ? "" : ", not all for lack of time: --seconds"));
  std::vector<PlanRow> rows;
  for (const PlannedLayout& layout : result.best) rows.push_back({layout.text, layout.prediction});
  fmt::print("\n{}", rows_text(rows));
  fmt::print("\n");
  for (const std::string& sentence : advice_of(result, num_ranks)) fmt::print("- {}\n", sentence);
  if (result.best.empty()) return 5;
  const PlannedLayout& best = result.best.front();
  if (result.fits()) print_price(hardware, best.prediction, num_ranks);
  if (!arguments.write.empty()) {
    write_text(arguments.write, to_toml(best.recipe));
    print("recipe", "written to " + arguments.write);
  }
  if (!arguments.trace.empty()) {
    std::vector<SimulatedStep::Span> spans;
    predictor.predict(best.recipe, &spans);
    write_text(arguments.trace, trace_of(spans));
    print("timeline", "written to " + arguments.trace);
  }
  return result.fits() ? 0 : 5;
}

}  // namespace caravan::app
