#include "caravan/base/trace/trace_events.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace caravan {
namespace {

using Spans = std::vector<TraceLog::Span>;

/// Spans of one row that a viewer draws nested: any two are nested or disjoint.
class Lane {
 public:
  /// Returns whether `span`, which begins no earlier than the previous ones, fits.
  bool add(const TraceLog::Span& span) {
    while (!open_ends_.empty() && open_ends_.back() <= span.begin_ns) open_ends_.pop_back();
    if (!open_ends_.empty() && open_ends_.back() < span.end_ns) return false;
    open_ends_.push_back(span.end_ns);
    return true;
  }

 private:
  std::vector<int64_t> open_ends_;  ///< of the nested spans, outermost first
};

/// Strings that are not UTF-8 would make the file unreadable.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string event_text(const TraceLog::Span& span, const TraceProcess& process, int thread) {
  const auto us = [](int64_t ns) { return static_cast<double>(ns) / 1e3; };
  std::string args;
  for (const auto& [name, value] : span.args) args += fmt::format("{}\"{}\":{}", args.empty() ? "" : ",", name, value);
  return fmt::format(R"({{"ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"name":{},"args":{{{}}}}})", process.rank,
                     thread, us(span.begin_ns - process.origin_ns), us(span.end_ns - span.begin_ns), quoted(span.name),
                     args);
}

/// The names of a process or thread, and its position among the others.
std::string place_text(const char* what, int rank, int thread, const std::string& name, int index) {
  return fmt::format(R"({{"ph":"M","pid":{0},"tid":{1},"name":"{2}_name","args":{{"name":{3}}}}},)"
                     "\n"
                     R"({{"ph":"M","pid":{0},"tid":{1},"name":"{2}_sort_index","args":{{"sort_index":{4}}}}})",
                     rank, thread, what, quoted(name), index);
}

std::string clock_text(const TraceProcess& process) {
  return fmt::format(
      ",\n"
      R"({{"ph":"M","pid":{},"tid":0,"name":"process_labels","args":{{"labels":"clock within {:.1f} us"}}}})",
      process.rank, static_cast<double>(process.origin_error_ns) / 1e3);
}

/// The rows: computation, waits, then the communicators by name.
std::vector<std::pair<std::string, Spans>> rows_of(const Spans& spans) {
  std::map<std::string, Spans> by_name;
  for (const TraceLog::Span& span : spans) by_name[span.row].push_back(span);
  std::vector<std::pair<std::string, Spans>> rows;
  for (const std::string_view first : {TraceLog::kCompute, TraceLog::kWait}) {
    auto row = by_name.extract(std::string(first));
    if (!row.empty()) rows.emplace_back(row.key(), std::move(row.mapped()));
  }
  for (auto& [name, row] : by_name) rows.emplace_back(name, std::move(row));
  for (auto& [name, row] : rows) {
    std::ranges::stable_sort(row, [](const TraceLog::Span& a, const TraceLog::Span& b) {
      return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
    });
  }
  return rows;
}

}  // namespace

std::string trace_events(const TraceProcess& process, const Spans& spans) {
  std::string text = place_text("process", process.rank, 0, process.name, process.rank);
  if (process.origin_error_ns > 0) text += clock_text(process);
  int thread = 0;
  for (const auto& [name, row] : rows_of(spans)) {
    std::vector<Lane> lanes;
    for (const TraceLog::Span& span : row) {
      const auto fitting = std::ranges::find_if(lanes, [&](Lane& lane) { return lane.add(span); });
      const auto lane = fitting - lanes.begin();
      if (fitting == lanes.end()) {
        lanes.emplace_back().add(span);
        const std::string title = lane == 0 ? name : fmt::format("{} ({})", name, lane + 1);
        text += ",\n" + place_text("thread", process.rank, thread + static_cast<int>(lane) + 1, title,
                                   thread + static_cast<int>(lane));
      }
      text += ",\n" + event_text(span, process, thread + static_cast<int>(lane) + 1);
    }
    thread += static_cast<int>(lanes.size());
  }
  return text;
}

}  // namespace caravan
