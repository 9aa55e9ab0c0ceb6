#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <sstream>
#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/caravan/commands.h"
#include "apps/caravan/inspect/planned_schedule.h"
#include "caravan/base/error.h"
#include "caravan/base/json_reader.h"
#include "caravan/base/system/file.h"
#include "caravan/base/text.h"
#include "caravan/base/time.h"
#include "caravan/cost/memory_bytes.h"
#include "caravan/data/files/json_lines.h"
#include "caravan/formats/checkpoint/manifest.h"
#include "caravan/formats/huggingface/config_text.h"
#include "caravan/recipe/recipe_key.h"
#include "caravan/report/report_page.h"
#include "caravan/report/step_timeline.h"
#include "caravan/schedule/draw_pipeline.h"

namespace caravan::app {
namespace {

namespace fs = std::filesystem;

std::vector<RunLog> read_logs(const std::vector<std::string>& runs) {
  std::vector<RunLog> logs;
  for (const std::string& run : runs) {
    logs.push_back(RunLog::read(run));
    if (logs.back().lines().empty()) {
      throw DataError({"train.log", run, "has no line yet", "", "wait for its first step"});
    }
  }
  return logs;
}

std::string recipe_text(const RunLog& log) {
  std::ostringstream text;
  text << std::ifstream(log.run() / "recipe.toml").rdbuf();
  return text.str();
}

/// The newest checkpoint that can be read.
std::optional<CheckpointInfo> newest_info(const fs::path& run) {
  const std::vector<fs::path> checkpoints = list_checkpoints(run);
  for (auto checkpoint = checkpoints.rbegin(); checkpoint != checkpoints.rend(); ++checkpoint) {
    try {
      return Manifest::read(*checkpoint).info;
    } catch (const DataError&) {
      continue;  // `inspect` names what is damaged
    }
  }
  return std::nullopt;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Formats a number of a log, which may be anything.
std::string bytes_text(double bytes) {
  constexpr double kMost = 9e18;
  return format_bytes(static_cast<int64_t>(std::clamp(bytes, 0.0, kMost)));
}

std::string number_of(const RunLog& log, const std::string& quantity) {
  return log.has(quantity) ? fmt::format("{:.4f}", log.last(quantity)) : "-";
}

std::string lowest_of(const RunLog& log, const std::string& quantity) {
  if (!log.has(quantity)) return "-";
  const Series series = log.series(quantity);
  const auto lowest = std::ranges::min_element(series.y) - series.y.begin();
  return fmt::format("{:.4f} at step {:.0f}", series.y[static_cast<size_t>(lowest)],
                     series.x[static_cast<size_t>(lowest)]);
}

/// The loss of the line at `step`, which a run may not have logged.
std::string loss_at(const RunLog& log, int64_t step) {
  for (const MetricsLine& line : log.lines()) {
    if (line.step == step && line.numbers.contains("loss")) return fmt::format("{:.4f}", line.numbers.at("loss"));
  }
  return "-";
}

/// The last step that all runs have logged; 0: none.
int64_t last_common_step(const std::vector<RunLog>& logs) {
  std::set<int64_t> common;
  for (const MetricsLine& line : logs.front().lines()) common.insert(line.step);
  for (const RunLog& log : logs) {
    std::set<int64_t> steps;
    for (const MetricsLine& line : log.lines()) steps.insert(line.step);
    std::erase_if(common, [&](int64_t step) { return !steps.contains(step); });
  }
  return common.empty() ? 0 : *common.rbegin();
}

void print_row(const std::string& name, const std::vector<std::string>& values) {
  std::string row = fmt::format("{:<28}", name);
  for (const std::string& value : values) row += fmt::format("  {:>24}", value);
  fmt::print("{}\n", row);
}

/// The keys of the recipes that differ.
void print_recipe_differences(const std::vector<RunLog>& logs) {
  std::vector<Recipe> recipes;
  for (const RunLog& log : logs) {
    recipes.push_back(parse_recipe(recipe_text(log), (log.run() / "recipe.toml").string(), {}, RecipeWriter::run));
  }
  for (const RecipeKey& key : recipe_keys()) {
    if (key.name == "checkpoint.dir") continue;  // the run itself
    std::vector<std::string> values;
    for (const Recipe& recipe : recipes) values.push_back(key.idle(recipe).empty() ? to_toml(key.get(recipe)) : "-");
    if (std::ranges::any_of(values, [&](const std::string& value) { return value != values.front(); })) {
      print_row(key.name, values);
    }
  }
}

/// The texts that the run has sampled.
std::vector<std::pair<int64_t, std::string>> samples_of(const RunLog& log) {
  std::vector<std::pair<int64_t, std::string>> samples;
  const fs::path file = log.run() / "samples.jsonl";
  std::error_code error;
  if (!fs::exists(file, error)) return samples;
  for_each_json_line(file, [&](int64_t number, const nlohmann::json& line) {
    const int64_t step = JsonReader(line, "", file.string(), "report")["step"].integer(0, INT64_MAX);
    samples.emplace_back(step, text_field(line, "text", file, number));
  });
  return samples;
}

/// The rehearsed memory of rank 0 by kind, and the measured memory.
std::vector<std::pair<std::string, double>> memory_by_kind(const RunLog& log) {
  std::vector<std::pair<std::string, double>> kinds;
  for (const std::string_view kind : kMemoryKindNames) {
    const std::string name(kind);
    if (log.has("predicted." + name)) kinds.emplace_back(name, log.last("predicted." + name));
  }
  if (kinds.empty()) return kinds;
  kinds.emplace_back("all, predicted", log.last("predicted_memory_bytes"));
  kinds.emplace_back("measured peak of rank 0", log.last("peak_memory_bytes"));
  return kinds;
}

ReportFacts facts_of(const RunLog& log) {
  ReportFacts report{.recipe = recipe_text(log), .memory = memory_by_kind(log), .samples = samples_of(log)};
  const auto add = [&](const char* name, const std::string& value) { report.facts.emplace_back(name, value); };
  const MetricsLine& last = log.lines().back();
  add("steps", std::to_string(last.step));
  add("loss", number_of(log, "loss"));
  if (log.has("val_loss")) add("lowest validation loss", lowest_of(log, "val_loss"));
  add("tokens", short_number(log.last("tokens")));
  add("tokens per second", short_number(median(log.series("tokens_per_second").y)) + " (median)");
  add("peak memory of rank 0",
      bytes_text(log.last("peak_memory_bytes")) +
          (log.has("predicted_memory_bytes") ? ", predicted " + bytes_text(log.last("predicted_memory_bytes")) : ""));
  add("parameters, gradients, optimizer", bytes_text(log.last("state_bytes")));
  if (last.seconds >= 0) add("time", utc_text(log.lines().front().seconds) + " to " + utc_text(last.seconds));
  if (!last.host.empty()) add("host of rank 0", last.host);
  const std::optional<CheckpointInfo> info = newest_info(log.run());
  if (!info) return report;
  add("ranks", std::to_string(info->numerics.ranks));
  add("threads of a rank", std::to_string(info->numerics.threads_per_rank));
  add("matrix products", info->numerics.products);
  ModelConfig model = parse_config_text(info->model, log.run().string());
  add("model", fmt::format("{}, {} layers of width {}, {} parameters", model.arch.name, model.layers, model.width,
                           format_count(static_cast<double>(model.num_parameters()))));
  Recipe recipe = parse_recipe(info->recipe, log.run().string(), {}, RecipeWriter::run);
  if (info->numerics.ranks == 0) return report;
  recipe.model = model;
  if (!recipe.pipeline.is_used()) return report;
  const PlannedSchedule plan = plan_schedule(recipe, static_cast<int>(info->numerics.ranks));
  report.schedule = to_svg(plan.timeline, plan.order.rank_of_stage, recipe.pipeline.name() + ", as planned by FLOPs");
  return report;
}

}  // namespace

int plot(const PlotArguments& arguments) {
  const std::vector<RunLog> logs = read_logs(arguments.runs);
  const std::vector<Chart> charts =
      arguments.quantities.empty() && logs.size() == 1
          ? charts_of(logs.front(), arguments.axis)
          : charts_of(logs,
                      arguments.quantities.empty() ? std::vector<std::string>{"loss", "tokens_per_second"}
                                                   : arguments.quantities,
                      arguments.axis);
  if (!arguments.svg.empty()) {
    write_file_durably(arguments.svg, to_svg(charts), "plot");
    fmt::print("drawn in {}\n", arguments.svg);
    return 0;
  }
  winsize size{};
  const bool is_terminal = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  for (const Chart& chart : charts) fmt::print("{}\n", to_text(chart, is_terminal ? size.ws_col : 100, 12));
  return 0;
}

int compare(const CompareArguments& arguments) {
  const std::vector<RunLog> logs = read_logs(arguments.runs);
  const auto row = [&](const std::string& name, const std::function<std::string(const RunLog&)>& value) {
    std::vector<std::string> values;
    for (const RunLog& log : logs) values.push_back(value(log));
    print_row(name, values);
  };
  row("", [](const RunLog& log) { return log.name(); });
  row("steps", [](const RunLog& log) { return std::to_string(log.lines().back().step); });
  if (const int64_t step = last_common_step(logs); step > 0) {
    row(fmt::format("loss at step {}", step), [&](const RunLog& log) { return loss_at(log, step); });
  }
  row("last loss", [](const RunLog& log) { return number_of(log, "loss"); });
  row("lowest validation loss", [](const RunLog& log) { return lowest_of(log, "val_loss"); });
  row("tokens", [](const RunLog& log) { return short_number(log.last("tokens")); });
  row("tokens per second, median",
      [](const RunLog& log) { return short_number(median(log.series("tokens_per_second").y)); });
  row("ms of a step, median", [](const RunLog& log) { return short_number(median(log.series("step_ms").y)); });
  row("bytes sent by rank 0 in a step, median",
      [](const RunLog& log) { return bytes_text(median(log.series("bytes_sent").y)); });
  row("peak memory of rank 0", [](const RunLog& log) { return bytes_text(log.last("peak_memory_bytes")); });
  fmt::print("\nrecipes differ in\n");
  print_recipe_differences(logs);
  return 0;
}

int report(const ReportArguments& arguments) {
  const RunLog log = read_logs({arguments.run}).front();
  const fs::path out = arguments.out.empty() ? log.run() / "report.html" : fs::path(arguments.out);
  ReportFacts facts = facts_of(log);
  if (!arguments.trace.empty()) facts.timeline = step_timeline(arguments.trace);
  write_file_durably(out, report_page(log, facts), "report");
  fmt::print("written to {}\n", out.string());
  return 0;
}

}  // namespace caravan::app
