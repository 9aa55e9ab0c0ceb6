#include "caravan/train/balance/balancer.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/base/numeric/random.h"
#include "caravan/train/balance/deal_record.h"
#include "tests/data/support.h"

namespace caravan::testing::balancer_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Ranks that compute a row in `ms` each, and `fixed_ms` in every step besides.
std::vector<double> busy(const std::vector<int64_t>& rows, const std::vector<double>& ms, double fixed_ms = 0) {
  std::vector<double> all;
  for (size_t i = 0; i < rows.size(); ++i) all.push_back(fixed_ms + ms[i] * static_cast<double>(rows[i]));
  return all;
}

TEST(Balancer, DealsByTheMeasuredSpeedsAtOnce) {
  Balancer balancer({.rows = 36, .coordinates = 2}, {18, 18});
  EXPECT_TRUE(balancer.measure({18, 36}));
  EXPECT_THAT(balancer.rows(), ElementsAre(24, 12));
  EXPECT_FALSE(balancer.measure({24, 24}));
}

/// A part of the time does not depend on the rows: the deals approach the one with equal times.
TEST(Balancer, ApproachesEqualTimesIfSomeAreFixed) {
  Balancer balancer({.rows = 300, .coordinates = 2}, {150, 150});
  const std::vector<double> ms{1, 2};
  for (int i = 0; i < 10; ++i) balancer.measure(busy(balancer.rows(), ms, 60));
  const std::vector<double> times = busy(balancer.rows(), ms, 60);
  EXPECT_NEAR(times[0] / times[1], 1, 0.05);
}

TEST(Balancer, NoiseDoesNotChangeADeal) {
  Balancer balancer({.rows = 6400, .coordinates = 4}, {1600, 1600, 1600, 1600});
  const RandomStream noise(1, "noise");
  for (uint64_t i = 0; i < 50; ++i) {
    std::vector<double> times;
    for (uint64_t rank = 0; rank < 4; ++rank) times.push_back(100 + static_cast<double>(noise.bits(4 * i + rank) % 3));
    EXPECT_FALSE(balancer.measure(times)) << i;
  }
}

/// A rank that gets slower, and fast again.
TEST(Balancer, FollowsAChangeOfSpeed) {
  Balancer balancer({.rows = 60, .coordinates = 3}, {20, 20, 20});
  EXPECT_FALSE(balancer.measure(busy(balancer.rows(), {1, 1, 1})));
  EXPECT_TRUE(balancer.measure(busy(balancer.rows(), {1, 1, 2})));
  EXPECT_THAT(balancer.rows(), ElementsAre(24, 24, 12));
  EXPECT_FALSE(balancer.measure(busy(balancer.rows(), {1, 1, 2})));
  EXPECT_TRUE(balancer.measure(busy(balancer.rows(), {1, 1, 1})));
  EXPECT_THAT(balancer.rows(), ElementsAre(20, 20, 20));
}

TEST(Balancer, KeepsMicroBatchesWithinTheMemory) {
  Balancer balancer({.rows = 24, .coordinates = 2, .micro_batches = 2, .most = 8}, {12, 12});
  EXPECT_TRUE(balancer.measure({12, 120}));
  EXPECT_THAT(balancer.rows(), ElementsAre(16, 8));
}

TEST(DealRecord, IsReadAsItWasWritten) {
  const std::vector<RecordedDeal> deals{{.step = 0, .micro_batches = 2, .rows = {4, 4}},
                                        {.step = 7, .micro_batches = 2, .rows = {5, 3}, .busy_ms = {10.5, 21}},
                                        {.step = 9, .micro_batches = 2, .rows = {4, 4}}};
  std::string text;
  for (const RecordedDeal& deal : deals) text += deal.to_json() + '\n';
  const std::vector<RecordedDeal> read = parse_deals(text + R"({"step": 12, "mic)", "deals.jsonl");
  EXPECT_EQ(read, deals);
  EXPECT_THAT(deal_after(read, 0)->rows, ElementsAre(4, 4));
  EXPECT_THAT(deal_after(read, 6)->rows, ElementsAre(4, 4));
  EXPECT_THAT(deal_after(read, 7)->rows, ElementsAre(5, 3));
  EXPECT_THAT(deal_after(read, 8)->rows, ElementsAre(5, 3));
  EXPECT_THAT(deal_after(read, 100)->rows, ElementsAre(4, 4));
  EXPECT_EQ(deal_after({deals[1]}, 6), nullptr);
}

TEST(DealRecord, OtherFilesAreRefusedWithTheirLine) {
  const std::string deal = RecordedDeal{.step = 3, .rows = {1}}.to_json() + '\n';
  EXPECT_THAT(message_of<DataError>([&] { parse_deals(deal + "{\"step\": 4}\n", "a.jsonl"); }),
              AllOf(HasSubstr("a.jsonl"), HasSubstr("line 2"), HasSubstr("is not a deal")));
  EXPECT_THAT(message_of<DataError>([&] { parse_deals("hello\n", "a.jsonl"); }), HasSubstr("line 1"));
  EXPECT_THAT(
      message_of<DataError>([&] { parse_deals(deal + RecordedDeal{.step = 2, .rows = {1}}.to_json() + '\n', "a"); }),
      HasSubstr("its step is before the last one"));
  EXPECT_THAT(message_of<DataError>(
                  [&] { parse_deals(RecordedDeal{.step = 2, .micro_batches = 0, .rows = {1}}.to_json() + '\n', "a"); }),
              HasSubstr("micro_batches"));
}

}  // namespace
}  // namespace caravan::testing::balancer_test
