#include <algorithm>
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
#include "caravan/plan/predict.h"
#include "caravan/plan/search.h"

namespace caravan::app {
namespace {

std::string seconds_text(double seconds) {
  return seconds < 1 ? fmt::format("{:.1f} ms", 1e3 * seconds) : fmt::format("{:.3f} s", seconds);
}

void print(const char* name, const std::string& value) { fmt::print("{:<10}{}\n", name, value); }

void print_hardware(const Hardware& hardware, int num_ranks) {
  std::vector<std::string> hosts;
  for (const HostKind& host : hardware.hosts) {
    hosts.push_back(
        fmt::format("{} host{} of {} {}", host.count, host.count == 1 ? "" : "s", host.devices, host.device));
  }
  print("hardware", fmt::format("{}; {} ranks", join(hosts), num_ranks));
  for (const LinkLevel& level : hardware.levels) {
    if (level.bytes_per_second <= 0) continue;
    print("", fmt::format("{}: {:.4g} GB/s a device, {:.3g} us, among {} devices", level.name,
                          level.bytes_per_second / 1e9, 1e6 * level.latency_seconds, level.devices));
  }
}

/// "products 71 %, other kernels 20 %, waits for dp 9 %": what takes the time of the slowest rank.
std::string cost_text(const Prediction& one) {
  std::vector<std::pair<double, std::string>> parts{
      {one.of_products, "products"}, {one.computes - one.of_products, "other kernels"}, {one.idles, "idle at the end"}};
  for (const auto& [axis, seconds] : one.waits) {
    parts.emplace_back(seconds, "waits for " + wait_name(axis));
  }
  std::ranges::sort(parts, std::greater<>());
  std::vector<std::string> texts;
  for (const auto& [seconds, name] : parts) {
    if (seconds > 0.02 * one.seconds) texts.push_back(fmt::format("{} {:.0f} %", name, 100 * seconds / one.seconds));
  }
  return join(texts);
}

std::string fit_text(const Prediction& one) {
  const std::string memory = format_bytes(one.memory.total());
  if (one.room_bytes <= 0) return memory;
  const bool is_host = one.host_room_bytes > 0 && one.host_bytes > one.host_room_bytes;
  const std::string host = fmt::format(": the host needs {}", format_bytes(one.host_bytes));
  return fmt::format("{} of {}{}", memory, format_bytes(one.room_bytes),
                     one.fits() ? ""
                     : is_host  ? host
                                : ": does not fit");
}

void print_rows(const SearchResult& result) {
  fmt::print("\n{:>3}  {:>10}{:>12}{:>7}  {:<24}  layout\n", "", "step", "tokens/s", "MFU", "memory");
  for (size_t i = 0; i < result.best.size(); ++i) {
    const PlannedLayout& layout = result.best[i];
    const Prediction& one = layout.prediction;
    fmt::print("{:>3}  {:>10}{:>12.0f}{:>6.1f}%  {:<24}  {}\n{:>63}{}\n", i + 1, seconds_text(one.seconds),
               one.tokens_per_second, 100 * one.utilisation, fit_text(one), layout.text, "", cost_text(one));
  }
}

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
  print_hardware(hardware, num_ranks);
  const auto parameters = static_cast<double>(recipe.model.num_parameters());
  print("model", fmt::format("{} parameters, {} sequences of {} tokens a step, {}", format_count(parameters),
                             recipe.train.global_batch, recipe.model.context, recipe.precision.compute));
  const SearchResult result = search_layouts(recipe, predictor, {.seconds = arguments.seconds});
  if (result.own) {
    const Prediction& own = result.own->prediction;
    print("recipe", fmt::format("{}: {} a step, {}", result.own->text, seconds_text(own.seconds), fit_text(own)));
  } else {
    print("recipe", fmt::format("cannot run on {} ranks as it is: {}", num_ranks,
                                result.own_error.substr(0, result.own_error.find('\n'))));
  }
  print("layouts", fmt::format("{} counted, {} estimated{}", result.num_counted, result.estimated.size(),
                               result.is_complete ? "" : ", not all for lack of time: --seconds"));
  print_rows(result);
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
