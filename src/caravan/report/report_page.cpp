#include "caravan/report/report_page.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/svg.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

/// The charts of a report, with the quantities of each.
const std::vector<std::pair<std::string, std::vector<std::string>>>& report_charts() {
  static const std::vector<std::pair<std::string, std::vector<std::string>>> charts{
      {"loss, nats per token", {"loss", "val_loss"}},
      {"norm of the gradient", {"grad_norm"}},
      {"learning rate", {"lr"}},
      {"tokens per second, all ranks", {"tokens_per_second"}},
      {"milliseconds of a step", {"step_ms", "comm_ms"}},
      {"bytes of rank 0", {"peak_memory_bytes", "state_bytes", "predicted_memory_bytes"}},
      {"rewards of answers", {"reward_margin", "reward_chosen", "reward_rejected"}},
      {"pairs in the right order", {"reward_accuracy"}},
      {"loss scale", {"loss_scale"}},
      {"balance of experts", {"experts.balance", "experts.dropped"}}};
  return charts;
}

constexpr const char* kStyle = R"(
body { font-family: sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
table { border-collapse: collapse; } td, th { padding: 0.2em 1.2em 0.2em 0; text-align: left; vertical-align: top; }
th { color: #666; font-weight: normal; } pre { background: #f4f4f4; padding: 1em; overflow-x: auto; }
svg { max-width: 100%; height: auto; }
)";

std::string table_of(const std::vector<std::pair<std::string, std::string>>& facts) {
  std::string rows;
  for (const auto& [name, value] : facts) {
    rows += fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", svg::escaped(name), svg::escaped(value));
  }
  return "<table>\n" + rows + "</table>\n";
}

/// A bar for each kind.
std::string memory_bars(const std::vector<std::pair<std::string, double>>& kinds) {
  constexpr double kLeft = 230, kWidest = 500, kRow = 20;
  double most = 1;
  for (const auto& [name, bytes] : kinds) most = std::max(most, bytes);
  std::string body;
  double y = 0;
  for (const auto& [name, bytes] : kinds) {
    const double width = bytes / most * kWidest;
    body += svg::words(kLeft - 8, y + 14, 12, name, "end") + svg::box(kLeft, y + 3, width, kRow - 6, "#90caf9") +
            svg::words(kLeft + width + 6, y + 14, 12, format_bytes(static_cast<int64_t>(bytes)));
    y += kRow;
  }
  return svg::document(kLeft + kWidest + 120, y + 4, body);
}

/// The quantities of layers that end so; of many layers some, evenly spread, with the first and the last.
std::vector<std::string> curves_of_layers(const RunLog& log, const std::string& suffix) {
  constexpr size_t kMost = 10;
  std::vector<std::string> all;
  for (const std::string& quantity : log.quantities()) {
    if (quantity.starts_with("layers.") && quantity.ends_with(suffix)) all.push_back(quantity);
  }
  std::ranges::stable_sort(all, {}, [](const std::string& name) { return name.size(); });  // blocks.2 before blocks.10
  if (all.size() <= kMost) return all;
  std::vector<std::string> some;
  for (size_t i = 0; i < kMost; ++i) some.push_back(all[i * (all.size() - 1) / (kMost - 1)]);
  return some;
}

/// A row for each step with troubles.
std::string troubles_of(const RunLog& log) {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const MetricsLine& line : log.lines()) {
    for (const std::string& trouble : line.troubles) rows.emplace_back(fmt::format("step {}", line.step), trouble);
  }
  return rows.empty() ? "" : "<h2>Troubles</h2>\n" + table_of(rows);
}

}  // namespace

std::vector<Chart> charts_of(const RunLog& log, const std::string& axis) {
  std::vector<Chart> charts;
  const auto add = [&](const std::string& title, const std::vector<std::string>& quantities) {
    Chart chart{.title = title, .x_name = axis == "time" ? "hours" : axis};
    for (const std::string& quantity : quantities) {
      if (log.has(quantity)) chart.curves.push_back({quantity, log.series(quantity, axis)});
    }
    if (!chart.curves.empty()) charts.push_back(std::move(chart));
  };
  for (const auto& [title, quantities] : report_charts()) add(title, quantities);
  std::vector<std::string> bubbles;
  for (const std::string& quantity : log.quantities()) {
    if (quantity.starts_with("bubble.")) bubbles.push_back(quantity);
  }
  add("part of the step in which the rank of each stage waits", bubbles);
  const std::pair<const char*, const char*> of_layers[] = {
      {"norm of the weights, by layer", ".norm"},
      {"norm of the gradient, by layer", ".grad_norm"},
      {"update relative to the weights, by layer", ".update_ratio"}};
  for (const auto& [title, suffix] : of_layers) add(title, curves_of_layers(log, suffix));
  return charts;
}

std::vector<Chart> charts_of(const std::vector<RunLog>& logs, const std::vector<std::string>& quantities,
                             const std::string& axis) {
  std::vector<Chart> charts;
  for (const std::string& quantity : quantities) {
    Chart chart{.title = quantity, .x_name = axis == "time" ? "hours" : axis};
    for (const RunLog& log : logs) {
      if (log.has(quantity)) chart.curves.push_back({log.name(), log.series(quantity, axis)});
    }
    if (chart.curves.empty()) logs.front().series(quantity, axis);  // throws, and names the nearest
    charts.push_back(std::move(chart));
  }
  return charts;
}

std::string report_page(const RunLog& log, const ReportFacts& facts) {
  std::string body = fmt::format("<h1>{}</h1>\n{}", svg::escaped(log.name()), table_of(facts.facts));
  body += troubles_of(log);
  body += "<h2>Curves</h2>\n";
  body += to_svg(charts_of(log));
  if (!facts.memory.empty()) body += "<h2>Memory of a rank</h2>\n" + memory_bars(facts.memory);
  if (!facts.timeline.empty()) body += "<h2>A step</h2>\n" + facts.timeline;
  if (!facts.schedule.empty()) body += "<h2>Schedule</h2>\n" + facts.schedule;
  if (!facts.samples.empty()) body += "<h2>Samples</h2>\n";
  for (const auto& [step, text] : facts.samples) {
    body += fmt::format("<h3>step {}</h3>\n<p>{}</p>\n", step, svg::escaped(text));
  }
  if (!facts.recipe.empty()) body += "<h2>Recipe</h2>\n<pre>" + svg::escaped(facts.recipe) + "</pre>\n";
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<link rel=\"icon\" href=\"data:,\">\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n{}</body>\n</html>\n",
      svg::escaped(log.name()), kStyle, body);
}

}  // namespace caravan
