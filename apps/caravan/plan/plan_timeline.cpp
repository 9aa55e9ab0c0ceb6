#include "apps/caravan/plan/plan_timeline.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/trace/trace_events.h"
#include "caravan/report/draw_timeline.h"
#include "caravan/train/model/rehearse.h"

namespace caravan::app {
namespace {

/// In the form of train --trace, which has a span of the step around the others.
std::string trace_of(const std::vector<SimulatedStep::Span>& spans) {
  std::map<int, std::vector<TraceLog::Span>> of_rank;
  const auto ns = [](double seconds) { return std::llround(1e9 * seconds); };
  double end = 0;
  for (const SimulatedStep::Span& span : spans) end = std::max(end, span.end);
  for (const SimulatedStep::Span& span : spans) {
    if (of_rank[span.rank].empty())
      of_rank[span.rank].push_back({std::string(TraceLog::kCompute), "step", {}, 0, ns(end)});
  }
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

/// Which part of a step was rehearsed.
std::string part_text(const Recipe& recipe, int num_ranks) {
  const int64_t all = plan_batch(recipe, num_ranks).accumulation;
  const bool is_whole = recipe.pipeline.is_used() || all <= kRehearsedMicroBatches;
  return is_whole ? "" : fmt::format(": {} of {} micro-batches", kRehearsedMicroBatches, all);
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
  const std::string part = part_text(layout.recipe, job.num_ranks);
  if (!arguments.trace.empty()) {
    write_text(arguments.trace, trace_of(spans));
    print_fact("timeline", "written to " + arguments.trace + part);
  }
  if (arguments.svg.empty()) return;
  const std::string title = fmt::format("{}, predicted on {}{}", layout.text, job.hardware.name, part);
  std::vector<DrawnSpan> drawn;
  for (const SimulatedStep::Span& span : spans) {
    drawn.push_back({span.rank, span.row, span.what, span.begin, span.end});
  }
  write_text(arguments.svg, draw_timeline(drawn, title));
  print_fact("timeline", "drawn in " + arguments.svg + part);
}

}  // namespace caravan::app
