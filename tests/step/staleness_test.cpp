#include "caravan/step/staleness.h"

#include <gtest/gtest.h>

namespace caravan::testing::staleness_test {
namespace {

TEST(StalenessCounts, CountsAndPrints) {
  StalenessCounts counts;
  EXPECT_EQ(counts.total(), 0);
  EXPECT_EQ(counts.mean(), 0);
  EXPECT_TRUE(counts.used().empty());
  for (const int64_t staleness : {0, 0, 2, 4}) counts.add(staleness);
  EXPECT_EQ(counts.used(), (std::vector<int64_t>{2, 0, 1, 0, 1}));
  EXPECT_DOUBLE_EQ(counts.mean(), 1.5);
  EXPECT_EQ(counts.to_string(), "0: 2  2: 1  4: 1");
  StalenessCounts more;
  more.add(1000);
  more.add(64);
  more.add(63);
  counts += more;
  EXPECT_EQ(counts.total(), 7);
  EXPECT_EQ(counts.to_string(), "0: 2  2: 1  4: 1  63: 1  64+: 2");
}

}  // namespace
}  // namespace caravan::testing::staleness_test
