#include "caravan/comm/calls/agree.h"

#include <algorithm>
#include <cerrno>
#include <functional>
#include <gmock/gmock.h>
#include <new>
#include <system_error>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/thread_ranks.h"

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

/// Only the root gets the texts; other ranks forward none.
TEST(Agree, TextsForOneRankReachOnlyIt) {
  for (const int ranks : {1, 2, 3, 5}) {
    for (int root = 0; root < ranks; ++root) {
      run_thread_ranks(ranks,
                       [&](const std::shared_ptr<Communicator>& world) {
                         std::vector<std::string> all;
                         for (int rank = 0; rank < ranks; ++rank)
                           all.emplace_back(static_cast<size_t>(1000 * (rank % 3)), 'x');
                         const std::string& own = all[static_cast<size_t>(world->rank())];
                         const int64_t before = world->traffic().total_bytes();
                         const auto got = gather_texts_to(*world, own, root, "texts");
                         const bool is_root = world->rank() == root;
                         EXPECT_EQ(got, is_root ? all : std::vector<std::string>());
                         EXPECT_EQ(world->traffic().total_bytes() - before,
                                   8 * (ranks - 1) + (is_root ? 0 : static_cast<int64_t>(own.size())));
                       },
                       {.timeout = std::chrono::seconds(10)});
    }
  }
}

/// What each rank throws when `failing` ranks throw `error`: the message and the exit code; "" without an error.
std::vector<std::pair<std::string, int>> thrown(int ranks, const std::vector<int>& failing,
                                                const std::function<void(int rank)>& error) {
  std::vector<std::pair<std::string, int>> all(static_cast<size_t>(ranks));
  run_thread_ranks(ranks,
                   [&](const std::shared_ptr<Communicator>& world) {
                     const int rank = world->rank();
                     try {
                       all_or_none(
                           *world,
                           [&] {
                             if (std::ranges::find(failing, rank) != failing.end()) error(rank);
                           },
                           "a save");
                     } catch (const Error& caught) {
                       all[static_cast<size_t>(rank)] = {caught.what(), caught.exit_code()};
                     }
                     world->barrier("after it");  // the communicator is alive
                   },
                   {.timeout = std::chrono::seconds(10)});
  return all;
}

TEST(Agree, AnErrorOnOneRankIsThrownOnAllRanks) {
  using ::testing::AllOf;
  using ::testing::Each;
  using ::testing::HasSubstr;
  using ::testing::Pair;
  const auto usage = [](int rank) {
    throw UsageError({"save", "folder " + std::to_string(rank), "is in use", "", "name another"});
  };
  EXPECT_THAT(thrown(3, {}, usage), Each(Pair("", 0)));
  for (const int ranks : {2, 3, 4}) {
    for (int failing = 0; failing < ranks; ++failing) {
      const std::string number = std::to_string(failing);
      EXPECT_THAT(
          thrown(ranks, {failing}, usage),
          Each(Pair("[save] folder " + number + ": is in use\n  where: rank " + number + "\n  do: name another", 2)));
    }
  }
  EXPECT_THAT(thrown(4, {3, 1, 2}, usage), Each(Pair(HasSubstr("folder 1"), 2)));
  EXPECT_THAT(thrown(2, {1},
                     [](int) {
                       throw DataError({"read", "", "is damaged", "rank 1 of 2 (dp=1)", ""});
                     }),
              Each(Pair("[read] is damaged\n  where: rank 1 of 2 (dp=1)", 3)));
  EXPECT_THAT(thrown(2, {1}, [](int) { throw std::bad_alloc(); }),
              Each(Pair(AllOf(HasSubstr("[a save] ran out of memory"), HasSubstr("rank 1")), 5)));
  const auto as_torch = [](int) {
    throw std::runtime_error("DefaultCPUAllocator: can't allocate memory: 9 bytes\nframe");
  };
  EXPECT_THAT(thrown(2, {0}, as_torch), Each(Pair(HasSubstr("can't allocate memory: 9 bytes"), 5)));
  EXPECT_THAT(thrown(2, {0}, [](int) { throw std::system_error(ENOSPC, std::generic_category(), "disk"); }),
              Each(Pair(HasSubstr("disk: No space left"), 5)));
  EXPECT_THAT(thrown(2, {0}, [](int) { throw std::runtime_error("a fault"); }), Each(Pair(HasSubstr("a fault"), 1)));
}

}  // namespace
}  // namespace caravan::agree_test
