// Transfers that share links, against a clock that ticks.
#include "caravan/cost/flows.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace caravan::testing::flows_test {
namespace {

constexpr double kTick = 1e-3;

struct Sent {
  std::string channel;
  Flows::Transfer transfer;
};

/// When each is through: in each tick, the first of each channel goes on by its share of the links.
std::vector<double> ends_by_ticks(const std::vector<Sent>& all) {
  std::vector<double> left, ends(all.size(), -1);
  for (const Sent& one : all) left.push_back(one.transfer.seconds);
  for (double now = 0; std::ranges::count(ends, -1) > 0; now += kTick) {
    std::map<std::string, size_t> first;
    for (size_t i = all.size(); i-- > 0;) {
      if (ends[i] < 0) first[all[i].channel] = i;
    }
    std::erase_if(first, [&](const auto& one) { return all[one.second].transfer.ready > now; });
    std::vector<double> loads(2, 0);
    for (const auto& [channel, i] : first) {
      for (size_t level = 0; level < 2; ++level) loads[level] += all[i].transfer.loads[level];
    }
    for (const auto& [channel, i] : first) {
      double slower = 1;
      for (size_t level = 0; level < 2; ++level) {
        if (all[i].transfer.loads[level] > 0) slower = std::max(slower, loads[level]);
      }
      left[i] -= kTick / slower;
      if (left[i] <= 0) ends[i] = now + kTick;
    }
  }
  return ends;
}

TEST(Flows, EndWhenAClockThatTicksSaysSo) {
  std::mt19937 random(7);
  const auto below = [&](unsigned count) { return static_cast<double>(random() % count); };
  for (int round = 0; round < 40; ++round) {
    std::vector<Sent> all;
    for (int i = 0; i < 6; ++i) {
      all.push_back({std::string(1, static_cast<char>('a' + random() % 3)),
                     {.ready = below(40) / 8, .seconds = (1 + below(16)) / 8, .loads = {below(5) / 4, below(3) / 2}}});
    }
    std::ranges::sort(all, {}, [](const Sent& one) { return one.transfer.ready; });
    Flows flows;
    std::vector<size_t> numbers;
    for (const Sent& one : all) numbers.push_back(flows.add(one.channel, one.transfer));
    const std::vector<double> ends = ends_by_ticks(all);
    for (size_t i = 0; i < all.size(); ++i) {
      // Each begin and end is late by a tick at most, which moves all that follow.
      EXPECT_NEAR(flows.finish(numbers[i]).end, ends[i], 12 * kTick) << "round " << round << ", transfer " << i;
    }
  }
}

TEST(Flows, KernelsAreSlowerWhileSomethingRuns) {
  Flows flows;
  const size_t first = flows.add("a", {.ready = 1, .seconds = 2});
  flows.add("b", {.ready = 5, .seconds = 1});
  // 1 alone, 2 seconds that do 1.6, 2 alone, 1 that does 0.8, the rest alone.
  EXPECT_NEAR(flows.compute(0, 6, 0.25), 1 + 2 + 2 + 1 + 0.6, 1e-12);
  const auto [begin, end] = flows.finish(first);
  EXPECT_EQ(begin, 1);
  EXPECT_EQ(end, 3);
  EXPECT_NEAR(flows.compute(10, 2, 0.25), 12, 1e-12);
}

TEST(Flows, AFixedTransferEndsWhenItWasSaid) {
  Flows flows;
  const auto [begin, end] = flows.add_fixed("a", {.ready = 0, .seconds = 4, .loads = {1}});
  EXPECT_EQ(begin, 0);
  EXPECT_EQ(end, 4);
  EXPECT_EQ(flows.is_free("a"), 4);
  EXPECT_EQ(flows.is_free("b"), 0);
  // What comes later shares with it, and does not move it.
  const size_t other = flows.add("b", {.ready = 0, .seconds = 4, .loads = {1}});
  EXPECT_EQ(flows.finish(other).end, 6);
  EXPECT_EQ(flows.add_fixed("a", {.ready = 0, .seconds = 1, .loads = {1}}).begin, 6);
}

}  // namespace
}  // namespace caravan::testing::flows_test
