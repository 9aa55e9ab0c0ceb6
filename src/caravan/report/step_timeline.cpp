#include "caravan/report/step_timeline.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/json_reader.h"
#include "caravan/base/system/file.h"
#include "caravan/report/draw_timeline.h"

namespace caravan {
namespace {

using nlohmann::json;

struct ReadTrace {
  std::vector<DrawnSpan> spans;
  std::map<int, std::string> names;  ///< of ranks
};

[[noreturn]] void refuse_trace(const std::filesystem::path& file, const char* fact) {
  throw DataError({"report", file.string(), fact, "", "name a file that train --trace has written"});
}

ReadTrace read_trace(const std::filesystem::path& file) {
  const MappedFile mapped(file, "report");
  check_json_depth(mapped.text(), file.string(), "report");
  const json root = json::parse(mapped.text(), nullptr, false);
  if (!root.is_object() || !root.contains("traceEvents") || !root["traceEvents"].is_array()) {
    refuse_trace(file, "is not a trace");
  }
  ReadTrace trace;
  std::map<std::pair<int, int>, std::string> rows;  // by rank and thread
  const auto place_of = [](const json& event) { return std::pair(event.value("pid", 0), event.value("tid", 0)); };
  for (const json& event : root["traceEvents"]) {
    const bool has_args = event.is_object() && event.contains("args") && event["args"].is_object();
    if (!has_args) refuse_trace(file, "has an event that is none of a trace");
    const std::string name = event.value("name", "");
    if (name == "process_name") trace.names[event.value("pid", 0)] = event["args"].value("name", "");
    if (name == "thread_name") rows[place_of(event)] = event["args"].value("name", "");
  }
  for (const json& event : root["traceEvents"]) {
    const auto place = place_of(event);
    if (event.value("ph", "") != "X" || place.first >= kMostTimelineRanks) continue;
    const double begin = event.value("ts", 0.0) * 1e-6;
    trace.spans.push_back(
        {place.first, rows[place], event.value("name", ""), begin, begin + event.value("dur", 0.0) * 1e-6});
  }
  return trace;
}

/// The last step of rank 0.
DrawnSpan last_step(const std::vector<DrawnSpan>& spans, const std::filesystem::path& file) {
  const DrawnSpan* last = nullptr;
  for (const DrawnSpan& span : spans) {
    const bool is_step = span.rank == 0 && span.what.starts_with("step");
    if (is_step && (last == nullptr || span.begin > last->begin)) last = &span;
  }
  if (last == nullptr) refuse_trace(file, "has no step");
  return *last;
}

}  // namespace

std::string step_timeline(const std::filesystem::path& trace) {
  ReadTrace read;
  try {
    read = read_trace(trace);
  } catch (const json::exception&) {
    refuse_trace(trace, "has an event with values of other types");
  }
  const DrawnSpan step = last_step(read.spans, trace);
  std::erase_if(read.spans, [&](const DrawnSpan& span) { return span.end <= step.begin || span.begin >= step.end; });
  for (DrawnSpan& span : read.spans) {
    span.begin = std::max(span.begin, step.begin) - step.begin;
    span.end = std::min(span.end, step.end) - step.begin;
  }
  return draw_timeline(read.spans, fmt::format("{}, {:.1f} ms", step.what, 1e3 * (step.end - step.begin)), read.names);
}

}  // namespace caravan
