#include "caravan/schedule/row_deal.h"

#include <algorithm>
#include <functional>
#include <gmock/gmock.h>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "caravan/base/error.h"
#include "tests/data/support.h"

namespace caravan::testing::row_deal_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The end of the best of all deals.
double best_end(const RowsToDeal& what, const std::vector<double>& speeds) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<int64_t> rows;
  const std::function<void(int64_t)> try_all = [&](int64_t left) {
    if (static_cast<int64_t>(rows.size()) == what.coordinates) {
      if (left == 0 && why_not(what, rows).empty()) best = std::min(best, end_of_deal(rows, speeds));
      return;
    }
    for (int64_t own = 0; own <= left; ++own) {
      rows.push_back(own);
      try_all(left - own);
      rows.pop_back();
    }
  };
  try_all(what.rows);
  return best;
}

TEST(RowDeal, EqualSpeedsGiveEqualParts) {
  EXPECT_THAT(deal_rows({.rows = 36, .coordinates = 3, .micro_batches = 4}, {7, 7, 7}), ElementsAre(12, 12, 12));
  EXPECT_THAT(deal_rows({.rows = 36, .coordinates = 3, .micro_batches = 3, .unit = 2, .most = 4}, {1, 1, 1}),
              ElementsAre(12, 12, 12));
  EXPECT_THAT(deal_rows({.rows = 5, .coordinates = 1}, {3}), ElementsAre(5));
}

TEST(RowDeal, FollowsTheSpeeds) {
  EXPECT_THAT(deal_rows({.rows = 36, .coordinates = 2}, {2, 1}), ElementsAre(24, 12));
  EXPECT_THAT(deal_rows({.rows = 36, .coordinates = 2, .unit = 4}, {2, 1}), ElementsAre(24, 12));
  EXPECT_THAT(deal_rows({.rows = 14, .coordinates = 4}, {2, 2, 2, 1}), ElementsAre(4, 4, 4, 2));
  // Each has three micro-batches, and none has more than five rows in one.
  EXPECT_THAT(deal_rows({.rows = 24, .coordinates = 2, .micro_batches = 3}, {100, 1}), ElementsAre(21, 3));
  EXPECT_THAT(deal_rows({.rows = 24, .coordinates = 2, .micro_batches = 3, .most = 5}, {100, 1}), ElementsAre(15, 9));
}

/// Against all deals there are.
RC_GTEST_PROP(RowDeal, EndsAsEarlyAsTheBestOfAllDeals, ()) {
  const RowsToDeal what{.rows = *rc::gen::inRange<int64_t>(4, 15),
                        .coordinates = *rc::gen::inRange<int64_t>(1, 4),
                        .micro_batches = *rc::gen::inRange<int64_t>(1, 4),
                        .unit = *rc::gen::element<int64_t>(1, 1, 2),
                        .most = *rc::gen::element<int64_t>(0, 0, 3, 5)};
  std::vector<double> speeds;
  for (int64_t i = 0; i < what.coordinates; ++i) speeds.push_back(*rc::gen::inRange(1, 9));
  const double best = best_end(what, speeds);
  if (best == std::numeric_limits<double>::infinity()) {
    RC_ASSERT_THROWS_AS(deal_rows(what, speeds), UsageError);
    return;
  }
  const std::vector<int64_t> rows = deal_rows(what, speeds);
  RC_ASSERT(why_not(what, rows) == "");
  RC_ASSERT(end_of_deal(rows, speeds) == best);
  RC_ASSERT(what.most == 0 || largest_micro_batch(what, rows) <= what.most);
}

RC_GTEST_PROP(RowDeal, MicroBatchesAreConsecutiveAndDifferByAUnit, ()) {
  const auto unit = *rc::gen::inRange<int64_t>(1, 4);
  const auto count = *rc::gen::inRange<int64_t>(1, 6);
  const int64_t rows = unit * *rc::gen::inRange<int64_t>(count, 30);
  int64_t next = 0, least = rows, most = 0;
  for (int64_t i = 0; i < count; ++i) {
    const RowRange range = rows_of_micro_batch(rows, count, i, unit);
    RC_ASSERT(range.first == next);
    RC_ASSERT(range.count % unit == 0);
    next += range.count;
    least = std::min(least, range.count);
    most = std::max(most, range.count);
  }
  RC_ASSERT(next == rows);
  RC_ASSERT(least > 0 && most - least <= unit);
  RC_ASSERT(most == largest_micro_batch({.rows = rows, .micro_batches = count, .unit = unit}, {rows}));
}

TEST(RowDeal, SaysWhatIsWrong) {
  const RowsToDeal what{.rows = 12, .coordinates = 2, .micro_batches = 2, .unit = 2, .most = 4};
  EXPECT_EQ(why_not(what, {8, 4}), "");
  EXPECT_THAT(why_not(what, {4, 4, 4}), HasSubstr("rows of 3 data-parallel ranks, but there are 2"));
  EXPECT_THAT(why_not(what, {8, 8}), HasSubstr("16 rows in a step, but there are 12"));
  EXPECT_THAT(why_not(what, {7, 5}), HasSubstr("7 rows of a rank do not make 2 micro-batches of a multiple of 2"));
  EXPECT_THAT(why_not(what, {10, 2}), HasSubstr("2 rows of a rank do not make"));
  EXPECT_THAT(why_not({.rows = 14, .coordinates = 2, .micro_batches = 2, .most = 4}, {10, 4}),
              HasSubstr("a micro-batch of 5 rows, but the memory of a rank has room for 4"));
  EXPECT_THAT(message_of<UsageError>([&] { deal_rows(what, {1, 0}); }), HasSubstr("a speed is 0"));
  EXPECT_THAT(message_of<UsageError>([&] { deal_rows(what, {1}); }), HasSubstr("1 speeds for 2 coordinates"));
  EXPECT_THAT(message_of<UsageError>([] {
                deal_rows({.rows = 3, .coordinates = 2, .micro_batches = 2}, {1, 1});
              }),
              HasSubstr("use at least 4 rows"));
  EXPECT_THAT(message_of<UsageError>([] {
                deal_rows({.rows = 9, .coordinates = 2, .most = 4}, {1, 1});
              }),
              HasSubstr("use more micro-batches"));
}

}  // namespace
}  // namespace caravan::testing::row_deal_test
