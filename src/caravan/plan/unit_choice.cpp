#include "caravan/plan/unit_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

namespace caravan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-3;
constexpr size_t kMostPoints = 2048;  ///< of a stage's sums, so many before they are rounded

/// The ways of units from the first of a stage on, as a sum.
struct Point {
  double seconds = 0;
  double bytes = 0;
  int64_t from = -1;  ///< of the points of the unit before
  size_t way = 0;
};

/// Keeps the points that no other beats in both numbers; of many, one for each step of bytes.
std::vector<Point> best_of(std::vector<Point> points, double room) {
  std::ranges::sort(points, {}, [](const Point& one) { return std::pair(one.bytes, one.seconds); });
  const double step = room > 0 && points.size() > kMostPoints ? room * kRounding : 0;
  std::vector<Point> kept;
  for (const Point& one : points) {
    if (!kept.empty() && one.seconds >= kept.back().seconds) continue;
    const bool is_near = step > 0 && !kept.empty() && kept.size() > 1 &&
                         std::floor(one.bytes / step) == std::floor(kept.back().bytes / step);
    if (is_near) kept.pop_back();  // the same bytes but for rounding, and faster
    kept.push_back(one);
  }
  return kept;
}

/// The best ways of the units of one stage that begins at a given unit, for every last unit.
class StageWays {
 public:
  StageWays(const UnitProblem& problem, const StageDevice& device, size_t first) : first_(first) {
    for (size_t unit = first; unit < problem.units.size(); ++unit) {
      std::vector<std::vector<Point>> of_way(problem.units[unit].size());
      bool fits = false;
      for (size_t way = 0; way < of_way.size(); ++way) {
        of_way[way] = best_of(points_of(problem, device, unit, way), device.room_bytes);
        fits = fits || !of_way[way].empty();
      }
      if (!fits) break;
      points_.push_back(std::move(of_way));
    }
  }

  /// Of the units up to `last`; kNever if they do not fit.
  double seconds(size_t last) const {
    double least = kNever;
    if (last - first_ >= points_.size()) return least;
    for (const std::vector<Point>& points : points_[last - first_]) {
      if (!points.empty()) least = std::min(least, points.back().seconds);
    }
    return least;
  }

  void write_ways(size_t last, std::vector<size_t>& ways) const {
    const auto& at_last = points_[last - first_];
    size_t way = 0;
    for (size_t other = 0; other < at_last.size(); ++other) {
      const auto least = [&](size_t of) { return at_last[of].empty() ? kNever : at_last[of].back().seconds; };
      if (least(other) < least(way)) way = other;
    }
    const Point* point = &at_last[way].back();
    for (size_t unit = last;; --unit) {
      ways[unit] = way;
      if (unit == first_) return;
      way = point->way;
      point = &points_[unit - 1 - first_][way][static_cast<size_t>(point->from)];
    }
  }

 private:
  /// `Point::way` is that of the unit before.
  std::vector<Point> points_of(const UnitProblem& problem, const StageDevice& device, size_t unit, size_t way) const {
    const UnitWay& own = problem.units[unit][way];
    const double seconds = own.seconds * device.slowness;
    const double bytes = own.state_bytes + own.kept_bytes * device.in_flight;
    std::vector<Point> all;
    const auto add = [&](const Point& point) {
      if (device.room_bytes <= 0 || point.bytes <= device.room_bytes) all.push_back(point);
    };
    if (unit == first_) {
      add({seconds, bytes, -1, 0});
      return all;
    }
    const auto& before = points_[unit - 1 - first_];
    for (size_t from = 0; from < before.size(); ++from) {
      const double switches = problem.switch_seconds.empty() ? 0 : problem.switch_seconds[from][way];
      for (size_t i = 0; i < before[from].size(); ++i) {
        const Point& one = before[from][i];
        add({one.seconds + switches + seconds, one.bytes + bytes, static_cast<int64_t>(i), from});
      }
    }
    return all;
  }

  size_t first_;
  std::vector<std::vector<std::vector<Point>>> points_;  ///< by unit and way, ascending in bytes
};

using DeviceKey = std::tuple<double, double, double>;
DeviceKey key_of(const StageDevice& device) { return {device.slowness, device.in_flight, device.room_bytes}; }

class Cuts {
 public:
  explicit Cuts(const UnitProblem& problem) : problem_(problem), num_units_(problem.units.size()) {
    for (const StageDevice& device : problem.stages) {
      auto [found, is_new] = ways_.try_emplace(key_of(device));
      if (!is_new) continue;
      for (size_t first = 0; first < num_units_; ++first) found->second.emplace_back(problem, device, first);
    }
  }

  /// The fastest cut in which no stage takes longer than `bound`.
  std::optional<UnitChoice> best(double bound) const;
  /// What stages may take, ascending.
  std::vector<double> bounds() const;

 private:
  const StageWays& ways(size_t stage, size_t first) const { return ways_.at(key_of(problem_.stages[stage]))[first]; }
  double stage_seconds(size_t stage, size_t first, size_t last) const {
    return ways(stage, first).seconds(last) + (stage > 0 ? problem_.message_seconds : 0);
  }

  const UnitProblem& problem_;
  size_t num_units_;
  std::map<DeviceKey, std::vector<StageWays>> ways_;
};

std::vector<double> Cuts::bounds() const {
  std::vector<double> all;
  for (size_t stage = 0; stage < problem_.stages.size(); ++stage) {
    for (size_t first = 0; first < num_units_; ++first) {
      for (size_t last = first; last < num_units_; ++last) {
        const double seconds = stage_seconds(stage, first, last);
        if (seconds < kNever) all.push_back(seconds);
      }
    }
  }
  std::ranges::sort(all);
  std::vector<double> apart;
  for (size_t i = 0; i < all.size(); ++i) {
    // The largest of those that are nearly equal admits all of them.
    const bool is_last = i + 1 == all.size() || all[i + 1] > all[i] * (1 + 1e-12);
    if (!is_last) continue;
    if (apart.size() > 1 && all[i] <= apart[apart.size() - 2] * (1 + kRounding)) apart.pop_back();
    apart.push_back(all[i]);
  }
  return apart;
}

std::optional<UnitChoice> Cuts::best(double bound) const {
  const size_t num_stages = problem_.stages.size();
  // sums[stage][end]: of the first stages, for the units before `end`.
  std::vector<std::vector<double>> sums(num_stages + 1, std::vector<double>(num_units_ + 1, kNever));
  std::vector<std::vector<size_t>> begins(num_stages, std::vector<size_t>(num_units_ + 1, 0));
  sums[0][0] = 0;
  for (size_t stage = 0; stage < num_stages; ++stage) {
    for (size_t first = stage; first < num_units_; ++first) {
      if (sums[stage][first] == kNever) continue;
      for (size_t last = first; last < num_units_; ++last) {
        const double own = stage_seconds(stage, first, last);
        if (own > bound) break;  // more units take longer
        if (sums[stage][first] + own >= sums[stage + 1][last + 1]) continue;
        sums[stage + 1][last + 1] = sums[stage][first] + own;
        begins[stage][last + 1] = first;
      }
    }
  }
  if (sums[num_stages][num_units_] == kNever) return std::nullopt;
  UnitChoice choice;
  choice.units_of_stage.resize(num_stages);
  choice.ways.resize(num_units_);
  double slowest = 0;
  size_t end = num_units_;
  for (size_t stage = num_stages; stage-- > 0;) {
    const size_t begin = begins[stage][end];
    choice.units_of_stage[stage] = static_cast<int64_t>(end - begin);
    ways(stage, begin).write_ways(end - 1, choice.ways);
    slowest = std::max(slowest, stage_seconds(stage, begin, end - 1));
    end = begin;
  }
  choice.seconds = sums[num_stages][num_units_] + static_cast<double>(problem_.micro_batches - 1) * slowest;
  return choice;
}

}  // namespace

std::optional<UnitChoice> choose_units(const UnitProblem& problem) {
  if (problem.units.size() < problem.stages.size() || problem.stages.empty()) return std::nullopt;
  const Cuts cuts(problem);
  std::optional<UnitChoice> best;
  for (const double bound : cuts.bounds()) {
    // With a larger bound the slowest stage alone takes longer than the best.
    if (best && static_cast<double>(problem.micro_batches) * bound > best->seconds * (1 + kRounding)) break;
    const auto choice = cuts.best(bound);
    if (choice && (!best || choice->seconds < best->seconds)) best = choice;
  }
  return best;
}

}  // namespace caravan
