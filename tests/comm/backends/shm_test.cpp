#include "caravan/comm/backends/shared/shm.h"

#include <csignal>
#include <filesystem>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

#include "caravan/base/error.h"
#include "caravan/base/system/fd.h"
#include "caravan/comm/backends/shared/peers/announcement.h"
#include "caravan/comm/backends/shared/peers/local_socket.h"
#include "tests/ranks/process_ranks.h"

namespace caravan::testing::shm_test {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Far longer than it takes to detect a death: a rank that ends in time did not wait for the time-out.
const CommOptions kPatient{.timeout = seconds(25)};

void expect_killed(const std::vector<RankEnd>& ends, size_t victim) {
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    if (rank == victim) {
      EXPECT_EQ(ends[rank].signal, SIGKILL) << ends[rank].output;
    } else {
      EXPECT_EQ(ends[rank].exit_code, 0) << "rank " << rank << ":\n" << ends[rank].output;
    }
  }
}

int num_named_segments() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    // Other tests keep folders there.
    const bool is_ours = entry.path().filename().string().find("caravan") != std::string::npos;
    if (is_ours && entry.is_regular_file()) ++count;
  }
  return count;
}

}  // namespace

TEST(Shm, KilledRankIsNamedInsideAWait) {
  const auto ends = run_processes(
      3,
      [](const std::shared_ptr<Communicator>& world) {
        world->barrier();
        if (world->rank() == 1) raise(SIGKILL);
        const std::string error = error_of<CommError>([&] { world->barrier("after the kill"); });
        EXPECT_THAT(error, AllOf(HasSubstr("[barrier] after the kill"), HasSubstr("rank 1 of the world is lost"),
                                 HasSubstr("its process"), HasSubstr("operation 1")));
        EXPECT_EQ(error_of<CommError>([&] { world->barrier(); }), error);
      },
      kPatient);
  expect_killed(ends, 1);
}

TEST(Shm, KilledRankIsNamedByPollingAnAsynchronousCall) {
  const auto ends = run_processes(
      3,
      [](const std::shared_ptr<Communicator>& world) {
        std::vector<float> data(300'000, 1.0F);
        const Buffer buffer{data.data(), 300'000, Dtype::fp32, {}};
        const auto group = world->split(std::vector<int>{0, 1, 2}, "group");
        if (world->rank() == 0) raise(SIGKILL);
        Work work = group->all_reduce_async(buffer, buffer, ReduceOp::sum, "bucket 3");
        while (!work.done()) std::this_thread::sleep_for(std::chrono::microseconds(100));
        EXPECT_THAT(error_of<CommError>([&] { work.wait(); }),
                    AllOf(HasSubstr("bucket 3"), HasSubstr("rank 0 of the world is lost")));
      },
      kPatient);
  expect_killed(ends, 0);
}

/// The victim is killed at an arbitrary moment, in the middle of many rounds.
TEST(Shm, RankKilledDuringALargeOperationIsNamed) {
  const auto ends = run_processes(
      4,
      [](const std::shared_ptr<Communicator>& world) {
        std::vector<float> data(1'000'000, 1.0F);
        const Buffer buffer{data.data(), 1'000'000, Dtype::fp32, {}};
        std::jthread killer;
        world->barrier();
        if (world->rank() == 2) {
          killer = std::jthread([] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            raise(SIGKILL);
          });
        }
        const std::string error = error_of<CommError>([&] {
          while (true) world->all_reduce(buffer, buffer, ReduceOp::max, "endless");
        });
        EXPECT_THAT(error, AllOf(HasSubstr("endless"), HasSubstr("rank 2 of the world is lost")));
      },
      kPatient);
  expect_killed(ends, 2);
}

/// A process that exits regularly before its peers have called is not lost: its messages stay readable.
TEST(Shm, RankMayEndWhileItsMessageIsUnread) {
  run_process_ranks(
      2,
      [](const std::shared_ptr<Communicator>& world) {
        int64_t number = 42;
        if (world->rank() == 0) {
          world->send({&number, 1, Dtype::int64}, 1);
          return;
        }
        number = 0;
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        world->recv({&number, 1, Dtype::int64, {}}, 0);
        EXPECT_EQ(number, 42);
      },
      kPatient);
}

TEST(Shm, RankThatExitsIsNamed) {
  const auto ends = run_processes(
      2,
      [](const std::shared_ptr<Communicator>& world) {
        world->barrier();
        if (world->rank() == 1) std::_Exit(3);  // runs no destructor
        EXPECT_THAT(error_of<CommError>([&] { world->barrier(); }), HasSubstr("rank 1 of the world is lost"));
      },
      kPatient);
  EXPECT_EQ(ends[0].exit_code, 0) << ends[0].output;
  EXPECT_EQ(ends[1].exit_code, 3);
}

TEST(Shm, LeavesNoNamedObjects) {
  const int before = num_named_segments();
  const auto ends = run_processes(
      2,
      [before](const std::shared_ptr<Communicator>& world) {
        world->barrier();
        EXPECT_EQ(num_named_segments(), before);
        raise(SIGKILL);
      },
      kPatient);
  for (const RankEnd& end : ends) EXPECT_EQ(end.signal, SIGKILL) << end.output;
  EXPECT_EQ(num_named_segments(), before);
}

TEST(Shm, SeveralWorldsOverOneStore) {
  run_process_ranks(
      3,
      [](const std::shared_ptr<Communicator>& world) {
        const RankInfo info = RankInfo::from_environment();
        const auto store = connect_store(info.master_addr, info.master_port, seconds(20));
        for (int i = 0; i < 3; ++i) {
          const auto another = make_shm_world(info, store, kPatient);
          int32_t rank = another->rank();
          another->all_reduce({&rank, 1, Dtype::int32}, {&rank, 1, Dtype::int32, {}}, ReduceOp::sum);
          EXPECT_EQ(rank, 3);
        }
        world->barrier();
      },
      kPatient);
}

TEST(Shm, RankThatDoesNotJoinIsNamed) {
  const auto store = local_store();
  RankInfo info;
  info.world_size = 3;
  store->set("shm/1/2", "");  // rank 2 has joined, rank 1 has not
  const auto call = [&] { make_shm_world(info, store, {.timeout = std::chrono::milliseconds(100)}); };
  EXPECT_THAT(error_of<CommError>(call),
              AllOf(HasSubstr("rank 1 of 3 did not join within 0.1 s"), HasSubstr("rank 0")));
}

TEST(Shm, AnInvalidRankIsRefused) {
  RankInfo info;
  info.rank = 2;
  info.world_size = 2;
  EXPECT_THAT(error_of<UsageError>([&] { make_shm_world(info, local_store()); }),
              HasSubstr("no rank 2 in a world of 2"));
}

TEST(ShmHosts, RanksOfOtherHostsAndUsersAreRefused) {
  const auto own = shared::Announcement::own("name", 7);
  EXPECT_FALSE(own.boot.empty());
  EXPECT_FALSE(own.network.empty());
  RankInfo info;
  info.world_size = 3;
  std::vector<shared::Announcement> all(3, own);
  EXPECT_NO_THROW(shared::check_one_host(all, info));
  const auto error = [&](auto change) {
    auto changed = all;
    change(changed[2]);
    return error_of<UsageError>([&] { shared::check_one_host(changed, info); });
  };
  EXPECT_THAT(error([](auto& other) {
                other.boot = "b";
                other.host = "elsewhere";
              }),
              AllOf(HasSubstr("rank 2 on elsewhere"), HasSubstr("gloo")));
  EXPECT_THAT(error([](auto& other) { other.network = "net:[1]"; }), HasSubstr("network namespaces"));
  EXPECT_THAT(error([](auto& other) { other.user += 1; }), HasSubstr("run all ranks as one user"));
}

// Ranks that are each pinned to their own core have enough cores.
TEST(ShmHosts, CoresOfAllRanksCount) {
  const auto cores_of = [](const std::vector<std::vector<int>>& ranks) {
    std::vector<shared::Announcement> all(ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i) all[i].cores = ranks[i];
    return shared::count_cores(all);
  };
  EXPECT_EQ(cores_of({{0}, {1}}), 2);
  EXPECT_EQ(cores_of({{3}, {3}}), 1);
  EXPECT_EQ(cores_of({{0, 1}, {0, 1}, {1, 2}}), 3);
  EXPECT_FALSE(shared::Announcement::own("name", 7).cores.empty());
}

TEST(LocalSocket, CarriesBytesAndDescriptors) {
  using shared::LocalSocket;
  using shared::Packet;
  const auto soon = [] { return steady_clock::now() + seconds(5); };
  const LocalSocket listener = LocalSocket::listen(2);
  ASSERT_FALSE(listener.name().empty());
  EXPECT_FALSE(LocalSocket::connect(listener.name() + "x", soon()).has_value());
  auto guest = LocalSocket::connect(listener.name(), soon());
  auto host = listener.accept(soon());
  ASSERT_TRUE(guest.has_value() && host.has_value());
  EXPECT_EQ(host->peer_user(), geteuid());

  Packet packet{.rank = 5, .token = 99};
  packet.set_text("hello");
  const Fd file(memfd_create("file", MFD_CLOEXEC));
  ASSERT_EQ(write(file.get(), "contents", 8), 8);
  ASSERT_TRUE(guest->send(packet, file.get(), soon()));
  ASSERT_TRUE(guest->send(Packet{.rank = 6}, -1, soon()));
  const auto first = host->receive(soon());
  ASSERT_TRUE(first.has_value() && first->descriptor);
  EXPECT_EQ(first->packet.rank, 5);
  EXPECT_EQ(first->packet.token, 99U);
  EXPECT_STREQ(first->packet.text.data(), "hello");
  char contents[9] = {};
  EXPECT_EQ(pread(first->descriptor.get(), contents, 8, 0), 8);
  EXPECT_STREQ(contents, "contents");
  const auto second = host->receive(soon());
  ASSERT_TRUE(second.has_value());
  EXPECT_FALSE(static_cast<bool>(second->descriptor));

  EXPECT_FALSE(host->receive(steady_clock::now()).has_value()) << "nothing was sent";
  guest.reset();
  EXPECT_FALSE(host->receive(soon()).has_value()) << "it is gone";
  EXPECT_FALSE(host->send(packet, -1, soon()));
}

}  // namespace caravan::testing::shm_test
