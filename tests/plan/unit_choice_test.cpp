#include "caravan/plan/unit_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace caravan::testing::unit_choice_test {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// Of one choice; kNever if it does not fit. Written without the code under test.
double seconds_of(const UnitProblem& problem, const std::vector<int64_t>& counts, const std::vector<size_t>& ways) {
  double sum = 0, slowest = 0;
  size_t unit = 0;
  for (size_t stage = 0; stage < counts.size(); ++stage) {
    const StageDevice& device = problem.stages[stage];
    double seconds = stage > 0 ? problem.message_seconds : 0, bytes = 0;
    for (int64_t i = 0; i < counts[stage]; ++i, ++unit) {
      const UnitWay& way = problem.units[unit][ways[unit]];
      seconds += device.slowness * way.seconds;
      bytes += way.state_bytes + device.in_flight * way.kept_bytes;
      if (i > 0 && !problem.switch_seconds.empty()) seconds += problem.switch_seconds[ways[unit - 1]][ways[unit]];
    }
    if (device.room_bytes > 0 && bytes > device.room_bytes * (1 + 1e-12)) return kNever;
    sum += seconds;
    slowest = std::max(slowest, seconds);
  }
  return sum + static_cast<double>(problem.micro_batches - 1) * slowest;
}

/// Tries everything.
double least_of_all(const UnitProblem& problem, std::vector<int64_t>& counts, std::vector<size_t>& ways,
                    int64_t units_left) {
  if (counts.size() < problem.stages.size()) {
    double least = kNever;
    const auto stages_left = static_cast<int64_t>(problem.stages.size() - counts.size());
    for (int64_t own = stages_left == 1 ? units_left : 1; own <= units_left - (stages_left - 1); ++own) {
      counts.push_back(own);
      least = std::min(least, least_of_all(problem, counts, ways, units_left - own));
      counts.pop_back();
    }
    return least;
  }
  if (ways.size() == problem.units.size()) return seconds_of(problem, counts, ways);
  double least = kNever;
  for (size_t way = 0; way < problem.units[ways.size()].size(); ++way) {
    ways.push_back(way);
    least = std::min(least, least_of_all(problem, counts, ways, units_left));
    ways.pop_back();
  }
  return least;
}

double least_of_all(const UnitProblem& problem) {
  std::vector<int64_t> counts;
  std::vector<size_t> ways;
  return least_of_all(problem, counts, ways, static_cast<int64_t>(problem.units.size()));
}

UnitProblem random_problem(std::mt19937& random) {
  const auto real = [&](double low, double high) { return std::uniform_real_distribution<double>(low, high)(random); };
  const auto whole = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  UnitProblem problem{.message_seconds = real(0, 0.2), .micro_batches = whole(1, 8)};
  const int num_units = whole(2, 7), num_ways = whole(1, 3), num_stages = whole(1, std::min(num_units, 4));
  for (int unit = 0; unit < num_units; ++unit) {
    std::vector<UnitWay>& ways = problem.units.emplace_back();
    for (int way = 0; way < num_ways; ++way) ways.push_back({real(0.1, 2), real(0, 1), real(0, 1)});
  }
  if (whole(0, 1) == 1) {
    for (int from = 0; from < num_ways; ++from) {
      std::vector<double>& row = problem.switch_seconds.emplace_back();
      for (int to = 0; to < num_ways; ++to) row.push_back(from == to ? 0 : real(0, 0.5));
    }
  }
  for (int stage = 0; stage < num_stages; ++stage) {
    const bool is_bound = whole(0, 3) > 0;
    problem.stages.push_back({real(0.5, 2), static_cast<double>(num_stages - stage), is_bound ? real(1, 8) : 0});
  }
  return problem;
}

TEST(UnitChoice, IsTheBestOfAll) {
  std::mt19937 random(7);
  int num_fitting = 0, num_not = 0;
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    const UnitProblem problem = random_problem(random);
    const double least = least_of_all(problem);
    const auto choice = choose_units(problem);
    ASSERT_EQ(choice.has_value(), least < kNever);
    if (!choice) {
      ++num_not;
      continue;
    }
    ++num_fitting;
    EXPECT_NEAR(choice->seconds, seconds_of(problem, choice->units_of_stage, choice->ways), 1e-9 * least);
    EXPECT_LE(choice->seconds, least * 1.002);
  }
  EXPECT_GT(num_fitting, 200);
  EXPECT_GT(num_not, 20);
}

/// 80 equal layers, kept or computed again, on 8 stages with fewer micro-batches in flight to the end.
TEST(UnitChoice, RecomputesNoMoreThanItMust) {
  UnitProblem problem{.micro_batches = 64};
  const std::vector<UnitWay> layer{{1, 1, 1}, {1.33, 0.05, 1}};
  problem.units.assign(80, layer);
  for (int stage = 0; stage < 8; ++stage) problem.stages.push_back({1, 8.0 - stage, 40});
  const auto choice = choose_units(problem);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->ways.size(), 80U);
  EXPECT_EQ(std::ranges::count(std::vector<size_t>(choice->ways.end() - 10, choice->ways.end()), 1U), 0);
  // The first stage has 8 in flight: of 10 layers 40 bytes let 3 keep theirs (10 + 3 x 8 + 7 x 0.4 = 36.8). Layers move
  // to later stages until all take the same time.
  EXPECT_GT(choice->units_of_stage.back(), choice->units_of_stage.front());
  EXPECT_LT(choice->seconds, 80 * 1.33 / 8 * (64 + 7));
}

TEST(UnitChoice, ManySumsAreRounded) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> real(0.5, 1.5);
  UnitProblem problem{.micro_batches = 16};
  for (int unit = 0; unit < 60; ++unit) {
    const double seconds = real(random), bytes = real(random);
    problem.units.push_back({{seconds, bytes, 0.1}, {1.3 * seconds, 0.1 * bytes, 0.1}});
  }
  for (int stage = 0; stage < 4; ++stage) problem.stages.push_back({1, 4.0 - stage, 30});
  const auto choice = choose_units(problem);
  ASSERT_TRUE(choice);
  EXPECT_NEAR(choice->seconds, seconds_of(problem, choice->units_of_stage, choice->ways), 1e-9 * choice->seconds);
  // No layout takes less than its layers, kept, dealt without remainder, with the bubble.
  double kept = 0;
  for (const std::vector<UnitWay>& ways : problem.units) kept += ways[0].seconds;
  EXPECT_GT(choice->seconds, kept / 4 * (16 + 3));
  // Another way for one unit, or the next cut, is no better beyond the rounding of bytes.
  for (size_t unit = 0; unit < problem.units.size(); ++unit) {
    std::vector<size_t> ways = choice->ways;
    ways[unit] = 1 - ways[unit];
    EXPECT_GE(seconds_of(problem, choice->units_of_stage, ways), 0.99 * choice->seconds);
  }
}

}  // namespace
}  // namespace caravan::testing::unit_choice_test
