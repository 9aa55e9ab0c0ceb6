#include "apps/caravan/plan/plan_timeline.h"

#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/trace/trace_events.h"
#include "caravan/plan/draw_timeline.h"

namespace caravan::app {
namespace {

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

void write_text(const std::string& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) throw ResourceError({"plan", file, "cannot be written", "", "choose another file"});
}

void write_timelines(const PlannedJob& job, const Predictor& predictor, const PlannedLayout& layout) {
  const PlanArguments& arguments = job.arguments;
  if (arguments.trace.empty() && arguments.svg.empty()) return;
  std::vector<SimulatedStep::Span> spans;
  predictor.predict(layout.recipe, &spans);
  if (!arguments.trace.empty()) {
    write_text(arguments.trace, trace_of(spans));
    print_fact("timeline", "written to " + arguments.trace);
  }
  if (arguments.svg.empty()) return;
  const std::string title = fmt::format("{}, predicted on {}", layout.text, job.hardware.name);
  write_text(arguments.svg, timeline_to_svg(spans, title));
  print_fact("timeline", "drawn in " + arguments.svg);
}

}  // namespace caravan::app
