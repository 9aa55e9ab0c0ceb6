#pragma once

#include <string>
#include <vector>

#include "caravan/report/run_log.h"

namespace caravan {

/// Curves over one axis. Points that are not finite are left out.
struct Chart {
  struct Curve {
    std::string name;
    Series points;
  };
  std::string title{};
  std::string x_name{};
  std::vector<Curve> curves{};
};

/// The numbers at which an axis from `low` to `high` is labelled: multiples of 1, 2 or 5 times a power of ten, about
/// `count` of them, inside the range.
std::vector<double> axis_ticks(double low, double high, int count);

/// "1.5 k", "0.00012", "3.2 M": a number of an axis or a table.
std::string short_number(double number);

/// The chart in characters, `width` columns and `height` rows of them. One curve is drawn in dots of Braille, two by
/// four to a character; several with a letter each, and a legend below.
std::string to_text(const Chart& chart, int width, int height);

/// The charts below each other as one SVG document, which may also stand in a page.
std::string to_svg(const std::vector<Chart>& charts);

}  // namespace caravan
