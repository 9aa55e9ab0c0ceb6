#include "caravan/schedule/row_deal.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

[[noreturn]] void refuse_deal(const std::string& fact, const std::string& action) {
  throw UsageError({"deal", "rows", fact, "", action});
}

/// The most units of a coordinate.
int64_t most_units(const RowsToDeal& what) {
  if (what.most <= 0) return std::numeric_limits<int64_t>::max();
  return what.most / what.unit * what.micro_batches;
}

void check_dealt(const RowsToDeal& what, const std::vector<double>& speeds) {
  if (static_cast<int64_t>(speeds.size()) != what.coordinates) {
    refuse_deal(fmt::format("{} speeds for {} coordinates", speeds.size(), what.coordinates), "give each its speed");
  }
  for (const double speed : speeds) {
    if (!(speed > 0) || !std::isfinite(speed)) refuse_deal(fmt::format("a speed is {}", speed), "give speeds above 0");
  }
  const int64_t units = what.rows / what.unit;
  if (what.rows % what.unit != 0 || units < what.coordinates * what.micro_batches) {
    refuse_deal(fmt::format("{} rows for {} coordinates with {} micro-batches of a multiple of {} rows", what.rows,
                            what.coordinates, what.micro_batches, what.unit),
                fmt::format("use at least {} rows", what.coordinates * what.micro_batches * what.unit));
  }
  if (most_units(what) < (units + what.coordinates - 1) / what.coordinates) {
    refuse_deal(fmt::format("{} coordinates with {} micro-batches of at most {} rows hold fewer than {}",
                            what.coordinates, what.micro_batches, what.most, what.rows),
                "use more micro-batches");
  }
}

}  // namespace

std::vector<int64_t> deal_rows(const RowsToDeal& what, const std::vector<double>& speeds) {
  check_dealt(what, speeds);
  const auto unit_end = [&](int64_t units, size_t coordinate) {
    return std::pair(static_cast<double>(units) / speeds[coordinate], coordinate);
  };
  std::vector<int64_t> units(speeds.size(), what.micro_batches);
  // By the end of a coordinate that gets one unit more. The next unit goes to the earliest.
  std::priority_queue<std::pair<double, size_t>, std::vector<std::pair<double, size_t>>, std::greater<>> next;
  const int64_t most = most_units(what);
  const auto offer = [&](size_t coordinate) {
    if (units[coordinate] < most) next.push(unit_end(units[coordinate] + 1, coordinate));
  };
  for (size_t i = 0; i < speeds.size(); ++i) offer(i);
  const int64_t given = what.coordinates * what.micro_batches;
  for (int64_t left = what.rows / what.unit - given; left > 0; --left) {
    const size_t coordinate = next.top().second;
    next.pop();
    ++units[coordinate];
    offer(coordinate);
  }
  for (int64_t& of_one : units) of_one *= what.unit;
  return units;
}

double end_of_deal(const std::vector<int64_t>& rows, const std::vector<double>& speeds) {
  double end = 0;
  for (size_t i = 0; i < rows.size(); ++i) end = std::max(end, static_cast<double>(rows[i]) / speeds[i]);
  return end;
}

std::string why_not(const RowsToDeal& what, const std::vector<int64_t>& rows) {
  if (static_cast<int64_t>(rows.size()) != what.coordinates) {
    return fmt::format("rows of {} data-parallel ranks, but there are {}", rows.size(), what.coordinates);
  }
  for (const int64_t own : rows) {
    if (own < 0 || own > what.rows) return fmt::format("{} rows of a rank, but {} in a step", own, what.rows);
  }
  const int64_t sum = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  if (sum != what.rows) return fmt::format("{} rows in a step, but there are {}", sum, what.rows);
  for (const int64_t own : rows) {
    if (own % what.unit != 0 || own < what.micro_batches * what.unit) {
      return fmt::format("{} rows of a rank do not make {} micro-batches of a multiple of {}", own, what.micro_batches,
                         what.unit);
    }
  }
  const int64_t largest = largest_micro_batch(what, rows);
  if (what.most > 0 && largest > what.most) {
    return fmt::format("a micro-batch of {} rows, but the memory of a rank has room for {}", largest, what.most);
  }
  return "";
}

int64_t largest_micro_batch(const RowsToDeal& what, const std::vector<int64_t>& rows) {
  if (rows.empty()) return what.rows / what.coordinates / what.micro_batches;
  const int64_t units = *std::ranges::max_element(rows) / what.unit;
  return (units + what.micro_batches - 1) / what.micro_batches * what.unit;
}

RowRange rows_of_micro_batch(int64_t rows, int64_t count, int64_t index, int64_t unit) {
  const int64_t units = rows / unit;
  const int64_t first = units * index / count * unit;
  return {first, units * (index + 1) / count * unit - first};
}

}  // namespace caravan
