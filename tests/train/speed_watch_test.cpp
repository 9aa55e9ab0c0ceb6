#include "caravan/train/watch/speed_watch.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

namespace caravan::testing::speed_watch_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Two ranks whose steps of 100 ms vary a little.
std::string usual(SpeedWatch& watch, int windows = 5) {
  std::string news;
  for (int i = 0; i < windows; ++i) {
    const double more = i % 3;
    news += watch.add(100 + more, {{80 + more, 2, 0}, {78, 2 + more, 0}});
  }
  return news;
}

TEST(SpeedWatch, UsualStepsAreNoNews) {
  SpeedWatch watch;
  EXPECT_EQ(usual(watch, 40), "");
  EXPECT_EQ(watch.add(140, {{118, 2, 0}, {78, 2, 0}}), "") << "less than half as slow again";
}

TEST(SpeedWatch, NamesARankThatComputesForLonger) {
  SpeedWatch watch;
  usual(watch);
  EXPECT_THAT(watch.add(220, {{80, 2, 0}, {200, 2, 0}}),
              AllOf(HasSubstr("a step takes 220.0 ms, 101.0 before"), HasSubstr("rank 1 computes for 200.0 ms")));
  EXPECT_EQ(watch.add(230, {{80, 2, 0}, {210, 2, 0}}), "") << "said once";
  EXPECT_EQ(watch.add(101, {{80, 2, 0}, {78, 2, 0}}), "a step takes 101.0 ms again");
  EXPECT_EQ(usual(watch), "");
}

TEST(SpeedWatch, NamesOtherCauses) {
  const auto news = [](double step_ms, const std::vector<RankTimes>& ranks) {
    SpeedWatch watch;
    usual(watch);
    return watch.add(step_ms, ranks);
  };
  EXPECT_THAT(news(300, {{80, 2, 0}, {78, 190, 0}}),
              HasSubstr("the data of rank 1 take 190.0 ms of a step, 3.0 before"));
  EXPECT_THAT(news(300, {{80, 2, 150}, {78, 2, 190}}), HasSubstr("checkpoints of rank 1 take 190.0 ms of a step"));
  EXPECT_THAT(news(300, {{80, 2, 0}, {78, 2, 0}}), HasSubstr("the network"));
  EXPECT_THAT(news(250, {{230, 2, 0}, {210, 2, 0}}),
              AllOf(HasSubstr("all ranks compute more slowly"), HasSubstr("other programs")));
}

TEST(SpeedWatch, OneRankIsNotNumbered) {
  SpeedWatch watch;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(watch.add(10, {{9, 1, 0}}), "");
  EXPECT_THAT(watch.add(30, {{29, 1, 0}}), AllOf(HasSubstr("it computes for 29.0 ms"), Not(HasSubstr("rank"))));
}

/// A level that stays is the new one; steps of microseconds are not compared.
TEST(SpeedWatch, GetsUsedToANewLevel) {
  SpeedWatch watch;
  usual(watch);
  std::string news;
  for (int i = 0; i < 40; ++i) news += watch.add(200, {{180, 2, 0}, {178, 2, 0}});
  EXPECT_THAT(news, HasSubstr("a step takes 200.0 ms"));
  EXPECT_THAT(news, Not(HasSubstr("again")));
  EXPECT_THAT(watch.add(400, {{380, 2, 0}, {378, 2, 0}}), HasSubstr("a step takes 400.0 ms, 200.0 before"));
  SpeedWatch fast;
  for (int i = 0; i < 5; ++i) fast.add(0.2, {{0.1, 0, 0}});
  EXPECT_EQ(fast.add(0.9, {{0.8, 0, 0}}), "");
}

}  // namespace
}  // namespace caravan::testing::speed_watch_test
