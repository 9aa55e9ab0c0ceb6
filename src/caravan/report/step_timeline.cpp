#include "caravan/report/step_timeline.h"

#include <algorithm>
#include <map>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/json_reader.h"
#include "caravan/base/svg.h"
#include "caravan/base/system/file.h"

namespace caravan {
namespace {

using nlohmann::json;

constexpr double kTimelineWidth = 960;
constexpr double kSpansLeft = 150;  ///< of the spans
constexpr double kRowHeight = 22;
constexpr double kTitleHeight = 20;

struct DrawnSpan {
  std::string name;
  double begin_us;
  double end_us;
};

/// A rank: its name, and its rows in order.
struct RankRows {
  std::string name;
  std::map<int, std::pair<std::string, std::vector<DrawnSpan>>> rows;
};

[[noreturn]] void refuse_trace(const std::filesystem::path& file, const char* fact) {
  throw DataError({"report", file.string(), fact, "", "name a file that train --trace has written"});
}

std::map<int, RankRows> read_spans(const std::filesystem::path& file) {
  const MappedFile mapped(file, "report");
  check_json_depth(mapped.text(), file.string(), "report");
  const json root = json::parse(mapped.text(), nullptr, false);
  if (!root.is_object() || !root.contains("traceEvents") || !root["traceEvents"].is_array()) {
    refuse_trace(file, "is not a trace");
  }
  std::map<int, RankRows> ranks;
  for (const json& event : root["traceEvents"]) {
    const bool has_args = event.is_object() && event.contains("args") && event["args"].is_object();
    if (!has_args) refuse_trace(file, "has an event that is none of a trace");
    const int rank = event.value("pid", 0);
    if (rank >= kMostTimelineRanks) continue;
    auto& [row_name, spans] = ranks[rank].rows[event.value("tid", 0)];
    const std::string name = event.value("name", "");
    if (event.value("ph", "") == "X") {
      const double begin = event.value("ts", 0.0);
      spans.push_back({name, begin, begin + event.value("dur", 0.0)});
    } else if (name == "process_name") {
      ranks[rank].name = event["args"].value("name", "");
    } else if (name == "thread_name") {
      row_name = event["args"].value("name", "");
    }
  }
  return ranks;
}

/// The last step of rank 0.
DrawnSpan last_step(const std::map<int, RankRows>& ranks, const std::filesystem::path& file) {
  const DrawnSpan* last = nullptr;
  if (ranks.contains(0)) {
    for (const auto& [row, named] : ranks.at(0).rows) {
      for (const DrawnSpan& span : named.second) {
        if (span.name.starts_with("step") && (last == nullptr || span.begin_us > last->begin_us)) last = &span;
      }
    }
  }
  if (last == nullptr) refuse_trace(file, "has no step");
  return *last;
}

const char* color_of(const std::string& row, const std::string& name) {
  if (row == "wait") return "#bbbbbb";
  if (row != "compute") return "#b39ddb";
  if (name.starts_with("step")) return "#eeeeee";
  if (name.starts_with("forward")) return "#90caf9";
  if (name.starts_with("optimizer")) return "#a5d6a7";
  return "#ffcc80";
}

std::string draw_row(const std::string& row, const std::vector<DrawnSpan>& spans, const DrawnSpan& step, double y) {
  const double scale = (kTimelineWidth - kSpansLeft - 10) / (step.end_us - step.begin_us);
  std::string body = svg::words(kSpansLeft - 8, y + kRowHeight - 8, 11, row, "end");
  std::vector<double> open;  // ends of the enclosing spans
  for (const DrawnSpan& span : spans) {
    if (span.end_us <= step.begin_us || span.begin_us >= step.end_us) continue;
    while (!open.empty() && open.back() <= span.begin_us) open.pop_back();
    const double inset = 4.0 * static_cast<double>(std::min<size_t>(open.size(), 3));
    open.push_back(span.end_us);
    const double begin = std::max(span.begin_us, step.begin_us), end = std::min(span.end_us, step.end_us);
    const double x = kSpansLeft + (begin - step.begin_us) * scale;
    const double width = std::max((end - begin) * scale, 0.3);
    body += fmt::format("<g><title>{}: {:.0f} us</title>{}</g>\n", svg::escaped(span.name), span.end_us - span.begin_us,
                        svg::box(x, y + inset, width, kRowHeight - 4 - inset, color_of(row, span.name)));
  }
  return body;
}

}  // namespace

std::string step_timeline(const std::filesystem::path& trace) {
  std::map<int, RankRows> ranks;
  try {
    ranks = read_spans(trace);
  } catch (const json::exception&) {
    refuse_trace(trace, "has an event with values of other types");
  }
  const DrawnSpan step = last_step(ranks, trace);
  std::string body =
      svg::words(kSpansLeft, 14, 12, fmt::format("{}, {:.1f} ms", step.name, (step.end_us - step.begin_us) / 1e3));
  double y = kTitleHeight;
  for (const auto& [rank, of] : ranks) {
    body += svg::words(4, y + kRowHeight - 8, 12, of.name);
    y += kRowHeight;
    for (const auto& [thread, row] : of.rows) {
      if (row.second.empty()) continue;
      body += draw_row(row.first, row.second, step, y);
      y += kRowHeight;
    }
  }
  return svg::document(kTimelineWidth, y + 10, body);
}

}  // namespace caravan
