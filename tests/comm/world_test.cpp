#include "caravan/comm/world.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <gmock/gmock.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "tests/ranks/rank_case.h"

namespace caravan {
namespace {

using ::testing::HasSubstr;

struct Ended {
  int exit_code = -1;
  std::string output;
};

/// Runs a shell command; its stdout and stderr together. What hangs is ended after a minute, with exit code 124.
Ended shell(const std::string& command) {
  const std::string limited = "exec 2>&1; timeout -k 1 60 sh -c '" + command + "'";
  FILE* pipe = popen(limited.c_str(), "r");
  Ended ended;
  std::array<char, 4096> bytes;
  for (size_t got = 0; (got = fread(bytes.data(), 1, bytes.size(), pipe)) > 0;) ended.output.append(bytes.data(), got);
  const int status = pclose(pipe);
  ended.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ended;
}

const std::string kRank = CARAVAN_TEST_WORLD_RANK;

int free_port() { return StoreServer("127.0.0.1", 0).port(); }

/// The environment of rank `rank` of 2, started by hand.
std::string by_hand(int rank, const std::string& address, int port, int local_world_size) {
  return "RANK=" + std::to_string(rank) +
         " WORLD_SIZE=2 LOCAL_RANK=" + (local_world_size == 2 ? std::to_string(rank) : "0") +
         " LOCAL_WORLD_SIZE=" + std::to_string(local_world_size) + " MASTER_ADDR=" + address +
         " MASTER_PORT=" + std::to_string(port) + " ";
}

void expect_both_ranks(const Ended& ended, const std::string& backend) {
  EXPECT_EQ(ended.exit_code, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("rank 0 of 2 by " + backend + ": token 42"));
  EXPECT_THAT(ended.output, HasSubstr("rank 1 of 2 by " + backend + ": token 42"));
}

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

TEST(World, ThreadIsNoWorldOfProcesses) {
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
    expect_both_ranks(ended, backend == "gloo" ? "gloo" : "shm");
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

/// The torchrun that came with this torch; its agent serves a store of c10d on MASTER_PORT.
TEST(World, UnderTorchrun) {
  const std::string torchrun = CARAVAN_TEST_TORCHRUN;
  if (torchrun.empty()) GTEST_SKIP() << "this torch came without torchrun";
  for (const std::string backend : {"gloo", "shm"}) {
    const Ended ended = shell(torchrun + " --standalone --nproc-per-node 2 --no-python " + kRank + " " + backend);
    expect_both_ranks(ended, backend);
  }
}

/// With a port of its own, and an agent that keeps its store to itself: rank 0 serves ours.
TEST(World, UnderTorchrunWithoutItsStore) {
  const std::string torchrun = CARAVAN_TEST_TORCHRUN;
  if (torchrun.empty()) GTEST_SKIP() << "this torch came without torchrun";
  const Ended ended = shell("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 " + torchrun +
                            " --standalone --nproc-per-node 2 --no-python " + kRank + " gloo");
  expect_both_ranks(ended, "gloo");
}

/// The agent keeps its store, with all that the ranks of the first attempt have left in it.
TEST(World, UnderTorchrunThatStartsTheRanksAgain) {
  const std::string torchrun = CARAVAN_TEST_TORCHRUN;
  if (torchrun.empty()) GTEST_SKIP() << "this torch came without torchrun";
  const Ended ended =
      shell(torchrun + " --standalone --nproc-per-node 2 --max-restarts 1 --no-python " + kRank + " gloo die_at_first");
  expect_both_ranks(ended, "gloo");
}

/// Two hosts as the kernel can make them: network namespaces joined by a cable.
class TwoHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string id = std::to_string(getpid());
    for (int i = 0; i < 2; ++i) host_[i] = "caravan" + id + (i == 0 ? "a" : "b");
    const std::string a = "c" + id + "a";
    const std::string b = "c" + id + "b";
    const Ended made = shell("ip netns add " + host_[0] + " && ip netns add " + host_[1]);
    if (made.exit_code != 0) GTEST_SKIP() << "network namespaces cannot be made here: " << made.output;
    const Ended joined =
        shell("set -e; ip link add " + a + " netns " + host_[0] + " type veth peer name " + b + " netns " + host_[1] +
              "; for h in " + host_[0] + " " + host_[1] + "; do ip -n $h link set lo up; done; ip -n " + host_[0] +
              " addr add 10.83.7.1/24 dev " + a + "; ip -n " + host_[1] + " addr add 10.83.7.2/24 dev " + b +
              "; ip -n " + host_[0] + " link set " + a + " up; ip -n " + host_[1] + " link set " + b + " up");
    if (joined.exit_code != 0) GTEST_SKIP() << "network namespaces cannot be joined here: " << joined.output;
  }
  void TearDown() override {
    for (const std::string& host : host_) shell("ip netns del " + host);
  }

  std::string host_[2];
};

TEST_F(TwoHosts, AreOneWorldByGloo) {
  const auto on = [&](int host) { return "ip netns exec " + host_[host] + " env "; };
  const Ended ended = shell(on(1) + by_hand(1, "10.83.7.1", 29417, 1) + kRank + " auto & " + on(0) +
                            by_hand(0, "10.83.7.1", 29417, 1) + kRank + " auto && wait $!");
  expect_both_ranks(ended, "gloo");
}

TEST_F(TwoHosts, HaveNoSharedMemory) {
  const auto on = [&](int host) { return "ip netns exec " + host_[host] + " env "; };
  const Ended ended = shell(on(1) + by_hand(1, "10.83.7.1", 29417, 1) + kRank + " shm & " + on(0) +
                            by_hand(0, "10.83.7.1", 29417, 1) + kRank + " shm");
  EXPECT_EQ(ended.exit_code, 2) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("use the back-end gloo"));
}

}  // namespace
}  // namespace caravan
