#include "caravan/plan/draw_timeline.h"

#include <algorithm>
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

using TimelineSpan = SimulatedStep::Span;

constexpr double kRankHeight = 26, kCallHeight = 14, kRankGap = 8;
constexpr double kLeft = 130, kTop = 48, kTimelineWidth = 1400;
constexpr double kNarrow = 4;  ///< narrower boxes are drawn with neighbours of their color ..
constexpr double kGap = 0.5;   ///< .. if they touch
constexpr const char* kIdle = "#eeeeee";
constexpr const char* kWaits = "#f3d3d3";
constexpr const char* kCalls = "#d98880";

/// The color of what a rank computes, by the first word of its name.
const char* color_of(const TimelineSpan& span) {
  if (span.row == TraceLog::kWait) return kWaits;
  if (span.row != TraceLog::kCompute) return kCalls;
  const std::string_view what = span.what;
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
  TimelineDrawing(std::span<const TimelineSpan> spans, std::string title) : title_(std::move(title)) {
    for (const TimelineSpan& span : spans) {
      total_ = std::max(total_, span.end);
      const bool is_wait = span.row == TraceLog::kWait;  // in the row of what the rank computes
      rows_[span.rank][is_wait ? std::string(TraceLog::kCompute) : span.row].push_back(&span);
    }
    scale_ = kTimelineWidth / std::max(total_, 1e-12);
  }

  std::string document() {
    for (auto& [rank, rows] : rows_) {
      out_ += svg::words(kLeft - 8, y_ + kRankHeight - 9, 12, fmt::format("rank {}", rank), "end");
      draw(rows[std::string(TraceLog::kCompute)], kRankHeight);
      for (auto& [axis, spans] : rows) {
        if (axis == TraceLog::kCompute) continue;
        out_ += svg::words(kLeft - 8, y_ + kCallHeight - 4, 10, axis, "end");
        draw(spans, kCallHeight);
      }
      y_ += kRankGap;
    }
    draw_marks();
    draw_legend();
    return svg::document(kLeft + kTimelineWidth + 40, y_ + 40, svg::words(kLeft, 26, 15, title_) + out_);
  }

 private:
  struct Box {
    double begin, end;  ///< in the drawing
    const char* color;
    const TimelineSpan* alone;  ///< null: several spans
  };

  double x_of(double seconds) const { return kLeft + seconds * scale_; }

  /// One row, from the current position on.
  void draw(std::vector<const TimelineSpan*>& spans, double height) {
    std::ranges::stable_sort(spans, {}, &TimelineSpan::begin);
    out_ += svg::box(kLeft, y_, kTimelineWidth, height - 2, kIdle);
    std::optional<Box> open;
    for (const TimelineSpan* span : spans) {
      const Box box{x_of(span->begin), x_of(span->end), color_of(*span), span};
      const bool is_narrow = open && std::min(open->end - open->begin, box.end - box.begin) < kNarrow;
      if (is_narrow && open->color == box.color && box.begin - open->end < kGap) {
        open->end = std::max(open->end, box.end);
        open->alone = nullptr;
        continue;
      }
      if (open) draw(*open, height);
      open = box;
    }
    if (open) draw(*open, height);
    y_ += height;
  }

  void draw(const Box& box, double height) {
    const double width = box.end - box.begin;
    out_ += svg::box(box.begin, y_, width, height - 2, box.color);
    if (box.alone == nullptr) return;
    const double size = std::min(11.0, height - 5);
    const std::string& text = box.alone->what;
    if (static_cast<double>(text.size()) * size * 0.6 > width) return;
    out_ += svg::words(box.begin + width / 2, y_ + height / 2 + size / 3, size, text, "middle");
  }

  void draw_marks() {
    const double mark = mark_of(std::max(total_, 1e-12));
    const bool is_small = total_ < 1;
    for (int64_t i = 0; static_cast<double>(i) * mark <= total_; ++i) {
      const double seconds = static_cast<double>(i) * mark;
      out_ += svg::line(x_of(seconds), kTop, x_of(seconds), y_, "#555", 0.5, 0.3);
      out_ += svg::words(x_of(seconds), y_ + 12, 10,
                         fmt::format("{:.4g} {}", is_small ? 1e3 * seconds : seconds, is_small ? "ms" : "s"), "middle");
    }
    y_ += 28;
  }

  void draw_legend() {
    double x = kLeft;
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
  std::map<int, std::map<std::string, std::vector<const TimelineSpan*>>> rows_;
  double total_ = 0, scale_ = 1;
  double y_ = kTop;
  std::string out_;
};

}  // namespace

std::string timeline_to_svg(std::span<const SimulatedStep::Span> spans, const std::string& title) {
  return TimelineDrawing(spans, title).document();
}

}  // namespace caravan
