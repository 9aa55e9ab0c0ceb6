// Two hosts, simulated by network namespaces that are joined by a virtual cable.
#include <gmock/gmock.h>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/comm/world/shells.h"

namespace caravan::testing::hosts_test {
namespace {

using ::testing::HasSubstr;

constexpr int kPort = 29417;  // each test uses its own addresses

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
              "; ip -n " + host_[0] + " addr add fd83:7::1/64 nodad dev " + a + "; ip -n " + host_[1] +
              " addr add fd83:7::2/64 nodad dev " + b + "; ip -n " + host_[0] + " link set " + a + " up; ip -n " +
              host_[1] + " link set " + b + " up");
    if (joined.exit_code != 0) GTEST_SKIP() << "network namespaces cannot be joined here: " << joined.output;
  }
  void TearDown() override {
    for (const std::string& host : host_) shell("ip netns del " + host);
  }

  std::string on(int host, const Place& place, const std::string& arguments) const {
    return "ip netns exec " + host_[host] + " env " + by_hand(place, master_, kPort) + rank_program() + " " + arguments;
  }
  /// Runs a job of `first` ranks on one host and `second` on the other. The exit code is that of rank 0.
  Ended run_job(int first, int second, const std::string& arguments) const {
    std::string command;
    for (int rank = first + second - 1; rank >= 0; --rank) {
      const bool is_second = rank >= first;
      const Place place{rank, first + second, is_second ? rank - first : rank, is_second ? second : first};
      command += on(is_second ? 1 : 0, place, arguments) + (rank > 0 ? " & " : "; code=$?; wait; exit $code");
    }
    return shell(command);
  }

  std::string host_[2];
  std::string master_ = "10.83.7.1";
};

TEST_F(TwoHosts, OfOneRankEachUseGloo) { expect_all_ranks(run_job(1, 1, "auto"), "gloo"); }

TEST_F(TwoHosts, MeetByIpv6) {
  master_ = "fd83:7::1";
  expect_all_ranks(run_job(1, 1, "auto"), "gloo");
}

TEST_F(TwoHosts, HaveNoSharedMemory) {
  const Ended ended = run_job(1, 1, "shm");
  EXPECT_EQ(ended.exit_code, 2) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("use the back-end gloo"));
}

TEST_F(TwoHosts, OfSeveralRanksUseTwoLevels) {
  expect_all_ranks(run_job(2, 2, "auto"), "shm+gloo", 4);
  expect_all_ranks(run_job(1, 2, "hierarchical"), "shm+gloo", 3);
  expect_all_ranks(run_job(3, 1, "shm+gloo"), "shm+gloo", 4);
}

/// The last rank ends. The ranks on the other host have no process descriptor for it.
TEST_F(TwoHosts, LostRankIsNamedOnBoth) {
  const Ended ended = run_job(2, 2, "shm+gloo die");
  EXPECT_EQ(ended.exit_code, 4) << ended.output;
  size_t named = 0;
  const std::string text = "rank 3 of the world is lost: ";
  for (size_t at = 0; (at = ended.output.find(text, at)) != std::string::npos; ++at) ++named;
  EXPECT_EQ(named, 3U) << ended.output;
}

}  // namespace
}  // namespace caravan::testing::hosts_test
