#include "caravan/report/draw_timeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/svg.h"
#include "caravan/base/trace/trace.h"
#include "caravan/schedule/draw_pipeline.h"

namespace caravan {
namespace {

constexpr double kRankHeight = 26, kCallHeight = 14, kRankGap = 8;
constexpr double kSpansLeft = 180, kSpansTop = 48, kTimelineWidth = 1400;
constexpr double kNarrow = 4;  ///< narrower boxes are drawn with neighbours of their color ..
constexpr double kGap = 0.5;   ///< .. if they touch
constexpr const char* kIdle = "#eeeeee";
constexpr const char* kWaits = "#f3d3d3";
constexpr const char* kCalls = "#d98880";

/// The color of what a rank computes, by the first word of its name.
const char* color_of(const DrawnSpan& span) {
  if (span.row == TraceLog::kWait) return kWaits;
  if (span.row != TraceLog::kCompute) return kCalls;
  const std::string_view what = span.what;
  if (what.starts_with("step")) return kIdle;  // a trace has it around the others
  for (const Pass::Kind kind : {Pass::Kind::forward, Pass::Kind::recompute, Pass::Kind::backward, Pass::Kind::weight}) {
    if (what.starts_with(look_of(kind).name)) return look_of(kind).color;
  }
  return look_of(Pass::Kind::update).color;
}

/// Seconds between two marks of the axis: 1, 2 or 5 times a power of ten, at least a tenth of all.
double mark_of(double total) {
  const double least = total / 10, power = std::pow(10, std::floor(std::log10(least)));
  for (const double times : {1.0, 2.0, 5.0}) {
    if (times * power >= least) return times * power;
  }
  return 10 * power;
}

class TimelineDrawing {
 public:
  TimelineDrawing(std::span<const DrawnSpan> spans, std::string title, const std::map<int, std::string>& names)
      : title_(std::move(title)), names_(names) {
    for (const DrawnSpan& span : spans) {
      total_ = std::max(total_, span.end);
      const bool is_wait = span.row == TraceLog::kWait;  // in the row of what the rank computes
      rows_[span.rank][is_wait ? std::string(TraceLog::kCompute) : span.row].push_back(&span);
    }
    scale_ = kTimelineWidth / std::max(total_, 1e-12);
  }

  std::string document() {
    for (auto& [rank, rows] : rows_) {
      const auto name = names_.find(rank);
      out_ += svg::words(kSpansLeft - 8, y_ + kRankHeight - 9, 12,
                         name == names_.end() ? fmt::format("rank {}", rank) : name->second, "end");
      draw(rows[std::string(TraceLog::kCompute)], kRankHeight);
      for (auto& [axis, spans] : rows) {
        if (axis == TraceLog::kCompute) continue;
        out_ += svg::words(kSpansLeft - 8, y_ + kCallHeight - 4, 10, axis, "end");
        draw(spans, kCallHeight);
      }
      y_ += kRankGap;
    }
    draw_marks();
    draw_legend();
    return svg::document(kSpansLeft + kTimelineWidth + 40, y_ + 40, svg::words(kSpansLeft, 26, 15, title_) + out_);
  }

 private:
  struct Box {
    double begin, end;  ///< in the drawing
    const char* color;
    const DrawnSpan* alone;  ///< null: several spans
  };
  static constexpr size_t kMostDepth = 3;  ///< of nested spans that are lower than those around them
  using Waiting = std::array<std::optional<Box>, kMostDepth + 1>;

  double x_of(double seconds) const { return kSpansLeft + seconds * scale_; }

  /// One row, from the current position on.
  void draw(std::vector<const DrawnSpan*>& spans, double height) {
    std::ranges::stable_sort(spans, {}, [](const DrawnSpan* span) { return std::pair(span->begin, -span->end); });
    out_ += svg::box(kSpansLeft, y_, kTimelineWidth, height - 2, kIdle);
    Waiting waiting;           // by depth: what may still become wider
    std::vector<double> open;  // ends of the spans around the next one
    for (const DrawnSpan* span : spans) {
      while (!open.empty() && open.back() <= span->begin + 1e-12) open.pop_back();
      const size_t depth = std::min(open.size(), kMostDepth);
      open.push_back(span->end);
      for (size_t outer = 0; outer < depth; ++outer) draw(waiting[outer], outer, height);
      add(waiting[depth], {x_of(span->begin), x_of(span->end), color_of(*span), span}, depth, height);
    }
    for (size_t depth = 0; depth <= kMostDepth; ++depth) draw(waiting[depth], depth, height);
    y_ += height;
  }

  void add(std::optional<Box>& waiting, const Box& box, size_t depth, double height) {
    const bool is_narrow = waiting && std::min(waiting->end - waiting->begin, box.end - box.begin) < kNarrow;
    if (is_narrow && waiting->color == box.color && box.begin - waiting->end < kGap) {
      waiting->end = std::max(waiting->end, box.end);
      waiting->alone = nullptr;
      return;
    }
    draw(waiting, depth, height);
    waiting = box;
  }

  void draw(std::optional<Box>& waiting, size_t depth, double height) {
    if (!waiting) return;
    const Box box = *std::exchange(waiting, std::nullopt);
    const double inset = height / 6 * static_cast<double>(depth), width = box.end - box.begin;
    const double border = width < 2 * kNarrow ? 0.1 : 0.5;
    const std::string drawn = svg::box(box.begin, y_ + inset, width, height - 2 - inset, box.color, border);
    if (box.alone == nullptr) {
      out_ += drawn;
      return;
    }
    const DrawnSpan& span = *box.alone;
    const std::string tip = fmt::format("{}: {:.0f} us", svg::escaped(span.what), 1e6 * (span.end - span.begin));
    out_ += fmt::format("<g><title>{}</title>{}</g>\n", tip, drawn);
    const double size = std::min(11.0, height - inset - 5);
    if (static_cast<double>(span.what.size()) * size * 0.6 > width || size < 7) return;
    out_ += svg::words(box.begin + width / 2, y_ + (height + inset) / 2 + size / 3, size, span.what, "middle");
  }

  void draw_marks() {
    const double mark = mark_of(std::max(total_, 1e-12));
    const bool is_small = total_ < 1;
    for (int64_t i = 0; static_cast<double>(i) * mark <= total_; ++i) {
      const double seconds = static_cast<double>(i) * mark;
      out_ += svg::line(x_of(seconds), kSpansTop, x_of(seconds), y_, "#555", 0.5, 0.3);
      out_ += svg::words(x_of(seconds), y_ + 12, 10,
                         fmt::format("{:.4g} {}", is_small ? 1e3 * seconds : seconds, is_small ? "ms" : "s"), "middle");
    }
    y_ += 28;
  }

  void draw_legend() {
    double x = kSpansLeft;
    const auto entry = [&](const char* color, const char* text) {
      out_ += svg::box(x, y_, 20, 14, color) + svg::words(x + 26, y_ + 12, 12, text);
      x += 150;
    };
    for (const Pass::Kind kind :
         {Pass::Kind::forward, Pass::Kind::recompute, Pass::Kind::backward, Pass::Kind::weight}) {
      entry(look_of(kind).color, look_of(kind).name);
    }
    entry(look_of(Pass::Kind::update).color, "optimizer, others");
    entry(kWaits, "waits for a call");
    entry(kIdle, "idle");
    entry(kCalls, "call, by axis");
  }

  std::string title_;
  const std::map<int, std::string>& names_;
  std::map<int, std::map<std::string, std::vector<const DrawnSpan*>>> rows_;
  double total_ = 0, scale_ = 1;
  double y_ = kSpansTop;
  std::string out_;
};

}  // namespace

std::string draw_timeline(std::span<const DrawnSpan> spans, const std::string& title,
                          const std::map<int, std::string>& names) {
  return TimelineDrawing(spans, title, names).document();
}

}  // namespace caravan
