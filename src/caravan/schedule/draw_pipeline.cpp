#include "caravan/schedule/draw_pipeline.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <tuple>

#include <fmt/format.h>

#include "caravan/base/svg.h"

namespace caravan {
namespace {

using svg::box, svg::words;

constexpr double kRowHeight = 34;
constexpr double kMargin = 56;
constexpr double kDrawnWidth = 1400;
constexpr std::string_view kMessage = "#b04040";

class Drawing {
 public:
  Drawing(const Timeline& timeline, const std::vector<int>& rank_of_stage)
      : timeline_(timeline), rank_of_stage_(rank_of_stage), scale_(kDrawnWidth / std::max(timeline.total, 1e-9)) {}

  std::string document(const std::string& title) {
    const auto rows = static_cast<double>(timeline_.ranks.size());
    std::string out = words(kMargin, kMargin / 2, 15, title);
    for (size_t rank = 0; rank < timeline_.ranks.size(); ++rank) out += row(rank);
    for (size_t rank = 0; rank < timeline_.ranks.size(); ++rank) out += messages(rank);
    return svg::document(kDrawnWidth + 2 * kMargin, (rows + 1) * kRowHeight + 2 * kMargin,
                         out + legend(kMargin + rows * kRowHeight + 20));
  }

 private:
  double x_of(double time) const { return kMargin + time * scale_; }
  double y_of(size_t rank) const { return kMargin + static_cast<double>(rank) * kRowHeight; }

  std::string row(size_t rank) {
    const double height = kRowHeight - 8;
    std::string out = words(6, y_of(rank) + 18, 12, fmt::format("rank {}", rank));
    out += box(x_of(0), y_of(rank), timeline_.total * scale_, height, "#eeeeee");
    for (const PassSpan& span : timeline_.ranks[rank].spans) {
      const PassLook look = look_of(span.pass.kind);
      const auto first = std::ranges::find(rank_of_stage_, static_cast<int>(rank)) - rank_of_stage_.begin();
      const double width = (span.end - span.begin) * scale_;
      out += box(x_of(span.begin), y_of(rank), width, height, span.pass.stage == first ? look.color : look.later);
      if (width >= 9) {
        out += words(x_of(span.begin) + width / 2, y_of(rank) + 17, std::min(11.0, width * 0.7),
                     std::to_string(span.pass.micro_batch), "middle");
      }
      ends_[{span.pass.kind, span.pass.stage, span.pass.micro_batch}] = span.end;
    }
    return out;
  }

  /// The messages to the passes of a rank from other ranks.
  std::string messages(size_t rank) const {
    std::string out;
    for (const PassSpan& span : timeline_.ranks[rank].spans) {
      const Pass& pass = span.pass;
      const int step = pass.kind == Pass::Kind::forward ? -1 : pass.kind == Pass::Kind::backward ? 1 : 0;
      const auto found = ends_.find({pass.kind, pass.stage + step, pass.micro_batch});
      if (step == 0 || found == ends_.end()) continue;
      const int from = rank_of_stage_[static_cast<size_t>(pass.stage + step)];
      if (from == static_cast<int>(rank)) continue;
      out += svg::line(x_of(found->second), y_of(static_cast<size_t>(from)) + 13, x_of(span.begin), y_of(rank) + 13,
                       kMessage, 0.6, 0.5);
    }
    return out;
  }

  static std::string legend(double y) {
    std::string out;
    double x = kMargin;
    for (const Pass::Kind kind :
         {Pass::Kind::forward, Pass::Kind::recompute, Pass::Kind::backward, Pass::Kind::weight}) {
      const PassLook look = look_of(kind);
      out += box(x, y, 14, 14, look.color) + box(x + 14, y, 14, 14, look.later) + words(x + 34, y + 12, 12, look.name);
      x += 160;
    }
    out += box(x, y, 28, 14, "#eeeeee") + words(x + 34, y + 12, 12, "bubble");
    x += 110;
    out += svg::line(x, y + 7, x + 28, y + 7, kMessage);
    return out + words(x + 34, y + 12, 12, "message to another rank; darker: a later stage of the rank");
  }

  const Timeline& timeline_;
  const std::vector<int>& rank_of_stage_;
  double scale_;
  std::map<std::tuple<Pass::Kind, int, int>, double> ends_;
};

}  // namespace

PassLook look_of(Pass::Kind kind) {
  switch (kind) {
    case Pass::Kind::forward: return {"F", "forward", "#7fb3e6", "#3f7fc1"};
    case Pass::Kind::recompute: return {"C", "recompute", "#c9b3e6", "#9673c4"};
    case Pass::Kind::backward: return {"B", "backward", "#8fd19a", "#4da35c"};
    case Pass::Kind::weight: return {"W", "weight gradients", "#f2c879", "#d39a34"};
    case Pass::Kind::update: return {"U", "update", "#cccccc", "#999999"};
  }
  return {};
}

std::string to_text(const Timeline& timeline, int width) {
  double shortest = timeline.total;
  for (const Timeline::Rank& rank : timeline.ranks) {
    for (const PassSpan& span : rank.spans) shortest = std::min(shortest, span.end - span.begin);
  }
  const std::string label = fmt::format("rank {:>{}} ", 0, std::to_string(timeline.ranks.size()).size());
  const double columns = std::max(20.0, static_cast<double>(width) - static_cast<double>(label.size()));
  const double scale = std::min(columns / std::max(timeline.total, 1e-9), 3 / std::max(shortest, 1e-9));
  const auto column = [&](double time) { return static_cast<size_t>(std::lround(time * scale)); };
  std::string text;
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    std::string row(column(timeline.total), '.');
    for (const PassSpan& span : timeline.ranks[rank].spans) {
      const size_t begin = column(span.begin);
      const size_t size = column(span.end) - begin;
      std::string cell = look_of(span.pass.kind).letter;
      const std::string number = std::to_string(span.pass.micro_batch);
      if (number.size() < size) cell += number;
      cell.resize(size, ' ');
      row.replace(begin, size, cell);
    }
    text += fmt::format("rank {:>{}} {}\n", rank, std::to_string(timeline.ranks.size()).size(), row);
  }
  return text;
}

std::string to_svg(const Timeline& timeline, const std::vector<int>& rank_of_stage, const std::string& title) {
  return Drawing(timeline, rank_of_stage).document(title);
}

}  // namespace caravan
