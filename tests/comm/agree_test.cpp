#include "caravan/comm/agree.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/fail_together.h"
#include "caravan/comm/shared/thread_ranks.h"

namespace caravan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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

/// The error of the lowest rank that failed, with its class, on every rank.
TEST(FailTogether, EveryRankThrowsTheFirstError) {
  run_thread_ranks(3,
                   [](const std::shared_ptr<Communicator>& world) {
                     const int rank = world->rank();
                     EXPECT_NO_THROW(fail_together(*world, [] {}));
                     EXPECT_NO_THROW(fail_together(*world, {}));
                     const auto fails = [&](const std::function<void()>& work) {
                       try {
                         fail_together(*world, work, "work");
                       } catch (const Error& error) {
                         return std::pair{error.exit_code(), std::string(error.what())};
                       }
                       return std::pair{0, std::string()};
                     };
                     const auto [code, text] = fails([&] {
                       if (rank == 1) throw DataError({"data", "caf\xe9", "is damaged", "line 3", "mend it"});
                       if (rank == 2) throw UsageError({"late", "", "", "", ""});
                     });
                     EXPECT_EQ(code, 3);
                     EXPECT_THAT(text, AllOf(HasSubstr("is damaged"), HasSubstr("do: mend it")));
                     EXPECT_THAT(text, HasSubstr(rank == 1 ? "where: line 3" : "where: rank 1: line 3"));
                     for (const auto& [thrown, want] : std::vector<std::pair<std::function<void()>, int>>{
                              {[] {
                                 throw UsageError({"a", "", "", "", ""});
                               },
                               2},
                              {[] {
                                 throw CommError({"a", "", "", "", ""});
                               },
                               4},
                              {[] {
                                 throw ResourceError({"a", "", "", "", ""});
                               },
                               5},
                              {[] {
                                 throw NumericsError({"a", "", "", "", ""});
                               },
                               6},
                              {[] {
                                 throw Interrupted({"a", "", "", "", ""});
                               },
                               130},
                              {[] {
                                 throw InternalError({"a", "", "", "", ""});
                               },
                               1}}) {
                       EXPECT_EQ(fails(rank == 0 ? thrown : std::function<void()>()).first, want);
                     }
                     if (rank == 0) {
                       EXPECT_THROW(fail_together(*world, [] { throw std::bad_alloc(); }), std::bad_alloc);
                     } else {
                       EXPECT_THROW(fail_together(*world, {}), ResourceError);
                     }
                   },
                   {.timeout = std::chrono::seconds(10)});
}

}  // namespace
}  // namespace caravan
