#include "caravan/comm/world.h"

#include <gmock/gmock.h>
#include <string>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "tests/comm/world/shells.h"
#include "tests/ranks/rank_case.h"

namespace caravan::world_test {
namespace {

using testing::by_hand;
using testing::Ended;
using testing::expect_all_ranks;
using ::testing::HasSubstr;
using testing::shell;

const std::string kRank = testing::rank_program();

int free_port() { return StoreServer("127.0.0.1", 0).port(); }

TEST(World, OfOneRankNeedsNoPeer) {
  const RankInfo info;
  for (const std::string backend : {"auto", "thread", "shm", "gloo"}) {
    const auto world = make_world(backend, info, open_store(info));
    EXPECT_EQ(world->size(), 1) << backend;
    world->barrier();
  }
}

TEST(World, UnknownBackendNamesTheNearest) {
  const RankInfo info;
  const std::string error = testing::error_of<UsageError>([&] { make_world("glo", info, local_store()); });
  EXPECT_THAT(error, HasSubstr("there are auto, thread, shm, gloo"));
  EXPECT_THAT(error, HasSubstr("choose gloo"));
}

TEST(World, ThreadIsRefusedForProcesses) {
  RankInfo info;
  info.world_size = 2;
  const std::string error = testing::error_of<UsageError>([&] { make_world("thread", info, local_store()); });
  EXPECT_THAT(error, HasSubstr("choose auto, shm or gloo"));
}

TEST(World, PortInUseIsNamed) {
  const StoreServer other("127.0.0.1", 0);
  const std::string port = std::to_string(other.port());
  const Ended ended = shell(by_hand(0, "127.0.0.1", other.port(), 2) + kRank + " gloo");
  EXPECT_EQ(ended.exit_code, 2) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("port " + port + " is in use"));
  EXPECT_THAT(ended.output, HasSubstr("set MASTER_PORT to another port"));
}

TEST(World, RanksStartedByHand) {
  for (const std::string backend : {"gloo", "shm", "auto"}) {
    const int port = free_port();
    const Ended ended = shell(by_hand(1, "127.0.0.1", port, 2) + kRank + " " + backend + " & " +
                              by_hand(0, "127.0.0.1", port, 2) + kRank + " " + backend + " && wait $!");
    expect_all_ranks(ended, backend == "gloo" ? "gloo" : "shm");
  }
}

/// Its connection to the store closes, so the others do not wait for the time-out of 20 s.
TEST(World, RankThatEndsBeforeTheWorldIsNamed) {
  for (const std::string backend : {"gloo", "shm", "shm+gloo"}) {
    const int port = free_port();
    const Ended ended = shell(by_hand(1, "127.0.0.1", port, 2) + kRank + " " + backend + " die_early & " +
                              by_hand(0, "127.0.0.1", port, 2) + kRank + " " + backend + " die_early");
    EXPECT_EQ(ended.exit_code, 4) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("rank 1 of 2 ended before the ranks met")) << backend;
  }
}

TEST(World, LostRankIsNamed) {
  const int port = free_port();
  const Ended ended = shell(by_hand(1, "127.0.0.1", port, 2) + kRank + " gloo die & " +
                            by_hand(0, "127.0.0.1", port, 2) + kRank + " gloo die");
  EXPECT_EQ(ended.exit_code, 4) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("rank 1 of the world is lost: "));
  EXPECT_THAT(ended.output, ::testing::Not(HasSubstr("gloo/transport"))) << "a source line of gloo";
}

/// The torchrun that came with this torch, whose agent serves a store of c10d on MASTER_PORT.
TEST(World, UnderTorchrun) {
  const std::string torchrun = CARAVAN_TEST_TORCHRUN;
  if (torchrun.empty()) GTEST_SKIP() << "this torch came without torchrun";
  const Ended ended = shell(torchrun + " --standalone --nproc-per-node 2 --no-python " + kRank + " shm");
  expect_all_ranks(ended, "shm");
}

/// The agent does not share its store: rank 0 serves ours.
TEST(World, UnderTorchrunWithoutItsStore) {
  const std::string torchrun = CARAVAN_TEST_TORCHRUN;
  if (torchrun.empty()) GTEST_SKIP() << "this torch came without torchrun";
  const Ended ended = shell("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 " + torchrun +
                            " --standalone --nproc-per-node 2 --no-python " + kRank + " gloo");
  expect_all_ranks(ended, "gloo");
}

/// The agent keeps its store, including the keys that the ranks of the first attempt set.
TEST(World, UnderTorchrunThatRestartsTheRanks) {
  const std::string torchrun = CARAVAN_TEST_TORCHRUN;
  if (torchrun.empty()) GTEST_SKIP() << "this torch came without torchrun";
  const Ended ended =
      shell(torchrun + " --standalone --nproc-per-node 2 --max-restarts 1 --no-python " + kRank + " gloo die_at_first");
  expect_all_ranks(ended, "gloo");
}

}  // namespace
}  // namespace caravan::world_test
