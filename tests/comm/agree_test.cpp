#include "caravan/comm/agree.h"

#include <gtest/gtest.h>

#include "caravan/comm/shared/thread_ranks.h"

namespace caravan::agree_test {
namespace {

TEST(Agree, TextsOfEveryRankReachEveryRank) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_thread_ranks(
        ranks,
        [&](const std::shared_ptr<Communicator>& world) {
          std::vector<std::string> want;
          for (int rank = 0; rank < ranks; ++rank)
            want.push_back(std::string(static_cast<size_t>(rank * 7 % 5), 'a') + std::string(1, '\0'));
          want.back().clear();
          EXPECT_EQ(gather_texts(*world, want[static_cast<size_t>(world->rank())], "texts"), want);
          for (int root = 0; root < ranks; ++root) {
            for (const std::string& text : {std::string(), std::string("runs/é\0x", 9)}) {
              EXPECT_EQ(broadcast_text(*world, world->rank() == root ? text : "something else", root, "text"), text);
            }
          }
        },
        {.timeout = std::chrono::seconds(10)});
  }
}

}  // namespace
}  // namespace caravan::agree_test
