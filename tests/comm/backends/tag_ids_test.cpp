#include "caravan/comm/backends/messages/tag_ids.h"

#include <gtest/gtest.h>

namespace caravan::messages::tag_ids_test {
namespace {

int choose(const std::vector<const TagIds*>& ranks, size_t words) {
  std::vector<std::vector<int64_t>> proposals;
  for (const TagIds* rank : ranks) proposals.push_back(rank->proposal(words));
  return TagIds::choose(std::vector<std::span<const int64_t>>(proposals.begin(), proposals.end()));
}

TEST(TagIds, ChoosesTheLeastIdFreeOnAllRanks) {
  TagIds a;
  TagIds b;
  EXPECT_EQ(choose({&a, &b}, 2), 1) << "0 is the world's";
  a.take(1);
  b.take(2);
  EXPECT_EQ(choose({&a, &b}, 2), 3);
  EXPECT_EQ(choose({&a}, 2), 2);
  a.release(1);
  EXPECT_EQ(choose({&a, &b}, 2), 1);
}

TEST(TagIds, IdsBeyondTheProposalContinueAboveAll) {
  TagIds a;
  TagIds b;
  for (int id = 1; id < 100; ++id) a.take(id);
  b.take(120);
  EXPECT_EQ(choose({&a, &b}, 2), 121) << "one word holds the ids to 63";
  EXPECT_EQ(choose({&a, &b}, 3), 100);
  a.release(70);
  EXPECT_EQ(choose({&a, &b}, 3), 70);
  EXPECT_EQ(choose({&a, &b}, 2), 121);
}

}  // namespace
}  // namespace caravan::messages::tag_ids_test
