#include "caravan/report/chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "caravan/base/svg.h"

namespace caravan {
namespace {

constexpr std::array<const char*, 8> kColors{"#2f6fb5", "#d0632b", "#3b8f4a", "#8b5fb3",
                                             "#b5942f", "#b53f5f", "#4a9aa5", "#666666"};

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  /// 0 to 1 from low to high.
  double part(double value) const { return (value - low) / (high - low); }
};

/// Differences of two drawn numbers, and their tenths, are finite and not 0.
constexpr double kLargest = 1e300;
constexpr double kSmallestRange = 1e-280;

bool is_drawn(const Series& points, size_t i) {
  return std::abs(points.x[i]) <= kLargest && std::abs(points.y[i]) <= kLargest;  // false for NaN
}

/// The ranges of all points; never empty, so that a single point is drawn in the middle.
std::pair<Range, Range> ranges_of(const Chart& chart) {
  Range x;
  Range y;
  for (const Chart::Curve& curve : chart.curves) {
    for (size_t i = 0; i < curve.points.x.size(); ++i) {
      if (!is_drawn(curve.points, i)) continue;
      x.add(curve.points.x[i]);
      y.add(curve.points.y[i]);
    }
  }
  for (Range* range : {&x, &y}) {
    if (range->low > range->high) *range = {0, 1};
    const bool is_point = range->high - range->low < kSmallestRange;
    const double pad = is_point ? std::max(std::abs(range->low) * 0.05, 1e-9) : 0;
    *range = {range->low - pad, range->high + pad};
  }
  return {x, y};
}

/// UTF-8 of a code point of three bytes, such as Braille.
std::string utf8(uint32_t code) {
  return {static_cast<char>(0xe0 | (code >> 12)), static_cast<char>(0x80 | (code >> 6 & 0x3f)),
          static_cast<char>(0x80 | (code & 0x3f))};
}

/// A raster of dots, `per_x` by `per_y` of them in a character.
class Raster {
 public:
  Raster(int columns, int rows, int per_x, int per_y)
      : width_(columns * per_x), height_(rows * per_y), dots_(static_cast<size_t>(width_ * height_), 0) {}

  int width() const { return width_; }
  int height() const { return height_; }
  char at(int x, int y) const { return dots_[static_cast<size_t>(y * width_ + x)]; }

  /// The curve as a line from point to point.
  void draw(const Series& points, const Range& x, const Range& y, char mark) {
    int last_x = -1;
    int last_y = -1;
    for (size_t i = 0; i < points.x.size(); ++i) {
      if (!is_drawn(points, i)) continue;
      const int to_x = static_cast<int>(std::lround(x.part(points.x[i]) * (width_ - 1)));
      const int to_y = static_cast<int>(std::lround((1 - y.part(points.y[i])) * (height_ - 1)));
      const int steps = last_x < 0 ? 0 : std::max(std::abs(to_x - last_x), std::abs(to_y - last_y));
      for (int step = 0; step <= steps; ++step) {
        const double part = steps == 0 ? 1 : static_cast<double>(step) / steps;
        const double from_x = last_x < 0 ? to_x : last_x;
        const double from_y = last_y < 0 ? to_y : last_y;
        set(static_cast<int>(std::lround(from_x + part * (to_x - from_x))),
            static_cast<int>(std::lround(from_y + part * (to_y - from_y))), mark);
      }
      last_x = to_x;
      last_y = to_y;
    }
  }

 private:
  void set(int x, int y, char mark) { dots_[static_cast<size_t>(y * width_ + x)] = mark; }

  int width_;
  int height_;
  std::vector<char> dots_;
};

std::string braille_cell(const Raster& raster, int column, int row) {
  static constexpr std::array<std::array<uint32_t, 2>, 4> kDots{
      {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}};
  uint32_t dots = 0;
  for (int y = 0; y < 4; ++y) {
    for (int x = 0; x < 2; ++x) {
      if (raster.at(2 * column + x, 4 * row + y) != 0) dots |= kDots[static_cast<size_t>(y)][static_cast<size_t>(x)];
    }
  }
  return dots == 0 ? " " : utf8(0x2800 + dots);
}

std::string letter_cell(const Raster& raster, int column, int row) {
  const char mark = raster.at(column, row);
  return mark == 0 ? " " : std::string(1, mark);
}

char letter_of(size_t curve) { return static_cast<char>('a' + curve % 26); }

/// "low ... high", as wide as the chart.
std::string x_line(const Chart& chart, const Range& x, size_t width) {
  const std::string low = short_number(x.low);
  const std::string high = short_number(x.high);
  const size_t used = low.size() + high.size() + chart.x_name.size();
  const size_t gap = width > used + 2 ? width - used : 2;
  return low + std::string(gap / 2, ' ') + chart.x_name + std::string(gap - gap / 2, ' ') + high;
}

}  // namespace

std::vector<double> axis_ticks(double low, double high, int count) {
  const double rough = (high - low) / std::max(count, 1);
  if (!(rough > 0)) return {low};
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= rough) step = factor * power;
  }
  std::vector<double> ticks;
  const auto first = static_cast<int64_t>(std::ceil(low / step - 1e-9));
  const auto last = static_cast<int64_t>(std::floor(high / step + 1e-9));
  for (int64_t i = first; i <= last; ++i) ticks.push_back(static_cast<double>(i) * step);
  return ticks;
}

std::string short_number(double number) {
  const double size = std::abs(number);
  if (size >= 1e12) return fmt::format("{:.3g} T", number / 1e12);
  if (size >= 1e9) return fmt::format("{:.3g} G", number / 1e9);
  if (size >= 1e6) return fmt::format("{:.3g} M", number / 1e6);
  if (size >= 1e4) return fmt::format("{:.3g} k", number / 1e3);
  return fmt::format("{:.4g}", number);
}

std::string to_text(const Chart& chart, int width, int height) {
  const auto [x, y] = ranges_of(chart);
  const bool is_one = chart.curves.size() == 1;
  const std::string high = short_number(y.high);
  const std::string low = short_number(y.low);
  const size_t label = std::max(high.size(), low.size());
  const int columns = std::max(width - static_cast<int>(label) - 3, 10);
  Raster raster(columns, std::max(height, 2), is_one ? 2 : 1, is_one ? 4 : 1);
  for (size_t i = 0; i < chart.curves.size(); ++i) raster.draw(chart.curves[i].points, x, y, letter_of(i));
  std::string text = chart.title + "\n";
  for (int row = 0; row < std::max(height, 2); ++row) {
    const std::string& number = row == 0 ? high : row + 1 == std::max(height, 2) ? low : std::string();
    std::string cells;
    for (int column = 0; column < columns; ++column) {
      cells += is_one ? braille_cell(raster, column, row) : letter_cell(raster, column, row);
    }
    text += fmt::format("{:>{}} |{}\n", number, label, cells);
  }
  text += fmt::format("{:>{}}  {}\n", "", label, x_line(chart, x, static_cast<size_t>(columns)));
  for (size_t i = 0; i < chart.curves.size() && !is_one; ++i) {
    text += fmt::format("{:>{}}  {} {}\n", "", label, letter_of(i), chart.curves[i].name);
  }
  return text;
}

namespace {

constexpr double kWidth = 720;
constexpr double kHeight = 320;

std::string drawn(const Chart& chart) {
  constexpr double width = kWidth;
  constexpr double height = kHeight;
  constexpr double kLeft = 64;
  constexpr double kRight = 16;
  constexpr double kTop = 30;
  const bool has_legend = chart.curves.size() > 1;
  const double bottom = 40 + (has_legend ? 18 * std::ceil(static_cast<double>(chart.curves.size()) / 2) : 0);
  const auto [x, y] = ranges_of(chart);
  const auto place_x = [&, &x = x](double value) { return kLeft + x.part(value) * (width - kLeft - kRight); };
  const auto place_y = [&, &y = y](double value) { return height - bottom - y.part(value) * (height - bottom - kTop); };
  std::string body = svg::words(kLeft, 18, 14, chart.title);
  for (const double tick : axis_ticks(y.low, y.high, 5)) {
    body += svg::line(kLeft, place_y(tick), width - kRight, place_y(tick), "#dddddd");
    body += svg::words(kLeft - 6, place_y(tick) + 4, 11, short_number(tick), "end");
  }
  for (const double tick : axis_ticks(x.low, x.high, 6)) {
    body += svg::line(place_x(tick), height - bottom, place_x(tick), height - bottom + 4, "#888888");
    body += svg::words(place_x(tick), height - bottom + 17, 11, short_number(tick), "middle");
  }
  body += svg::line(kLeft, height - bottom, width - kRight, height - bottom, "#888888");
  body += svg::words(width - kRight, height - bottom + 32, 11, chart.x_name, "end");
  for (size_t i = 0; i < chart.curves.size(); ++i) {
    const Chart::Curve& curve = chart.curves[i];
    const char* color = kColors[i % kColors.size()];
    std::string points;
    for (size_t at = 0; at < curve.points.x.size(); ++at) {
      if (!is_drawn(curve.points, at)) continue;
      points += fmt::format("{:.1f},{:.1f} ", place_x(curve.points.x[at]), place_y(curve.points.y[at]));
    }
    body += fmt::format(R"(<polyline points="{}" fill="none" stroke="{}" stroke-width="1.5"/>)"
                        "\n",
                        points, color);
    if (!points.empty() && points.find(' ') + 1 == points.size()) {  // a line of one point has no length
      const std::string at = points.substr(0, points.size() - 1);
      body += fmt::format(R"(<circle cx="{}" cy="{}" r="2.5" fill="{}"/>)"
                          "\n",
                          at.substr(0, at.find(',')), at.substr(at.find(',') + 1), color);
    }
    if (!has_legend) continue;
    const double column = kLeft + (i % 2 == 0 ? 0 : (width - kLeft) / 2);
    const double row = height - bottom + 50 + 18 * std::floor(static_cast<double>(i) / 2);
    body += svg::line(column, row - 4, column + 22, row - 4, color, 2);
    body += svg::words(column + 28, row, 12, curve.name);
  }
  return body;
}

}  // namespace

std::string to_svg(const std::vector<Chart>& charts) {
  std::string body;
  for (size_t i = 0; i < charts.size(); ++i) {
    body += fmt::format("<g transform=\"translate(0 {:.0f})\">\n{}</g>\n", static_cast<double>(i) * kHeight,
                        drawn(charts[i]));
  }
  return svg::document(kWidth, kHeight * static_cast<double>(charts.size()), body);
}

}  // namespace caravan
