#include <chrono>
#include <csignal>
#include <thread>
#include <unistd.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/gloo/gloo.h"
#include "tests/ranks/process_ranks.h"

namespace caravan::testing::gloo_kill_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const CommOptions kPatient{.timeout = std::chrono::seconds(20)};  // an error of the time-out is another one
const CommOptions kShort{.timeout = std::chrono::seconds(1)};

void expect_killed(const std::vector<RankEnd>& ends, size_t victim) {
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    const RankEnd& end = ends[rank];
    if (rank == victim) {
      EXPECT_EQ(end.signal, SIGKILL) << end.output;
    } else {
      EXPECT_EQ(end.exit_code, 0) << "rank " << rank << ":\n" << end.output;
    }
  }
}

/// Waits with `call` for data that a live rank never sends, while `victim` ends.
template <class Call>
void expect_named(Communicator& world, int victim, const Call& call) {
  world.barrier("all are here");
  if (world.rank() == victim) raise(SIGKILL);
  const std::string error = error_of<CommError>(call);
  EXPECT_THAT(error, AllOf(HasSubstr("rank " + std::to_string(victim) + " of the world is lost: "),
                           Not(HasSubstr("did not join within"))));
  EXPECT_EQ(error_of<CommError>([&] { world.barrier(); }), error_of<CommError>([&] { world.barrier(); }));
}

}  // namespace

/// The parameter is the rank that dies: 0 is watched by all.
class GlooKillOf : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Rank, GlooKillOf, ::testing::Values(0, 1, 2));

TEST_P(GlooKillOf, IsNamedInsideACollective) {
  const auto ends = run_processes(
      3,
      [](const std::shared_ptr<Communicator>& world) {
        expect_named(*world, GetParam(), [&] { world->barrier("after the kill"); });
      },
      kPatient, make_gloo_world);
  expect_killed(ends, static_cast<size_t>(GetParam()));
}

/// No rank waits for the one that dies. Its connections tell one rank, and the store the others.
TEST_P(GlooKillOf, IsNamedToThoseThatWaitForOthers) {
  const auto ends = run_processes(
      4,
      [](const std::shared_ptr<Communicator>& world) {
        const int some = GetParam() == 1 ? 2 : 1;
        expect_named(*world, GetParam(), [&] {
          int64_t number = 0;
          world->recv({&number, 1, Dtype::int64, {}}, world->rank() == some ? 3 : some, "nothing");
        });
      },
      kPatient, make_gloo_world);
  expect_killed(ends, static_cast<size_t>(GetParam()));
}

TEST(GlooKill, RankIsNamedToThoseThatPoll) {
  const auto ends = run_processes(
      4,
      [](const std::shared_ptr<Communicator>& world) {
        expect_named(*world, 3, [&] {
          int64_t number = 0;
          Work work = world->recv_async({&number, 1, Dtype::int64, {}}, world->rank() == 1 ? 0 : 1, "nothing");
          while (!work.done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          work.wait();
        });
      },
      kPatient, make_gloo_world);
  expect_killed(ends, 3);
}

/// A stopped rank is late, not dead: errors name it with its last call, and it gets the error when it continues.
TEST(GlooKill, StoppedRankIsLateNotLost) {
  const auto ends = run_processes(
      3,
      [](const std::shared_ptr<Communicator>& world) {
        int64_t pid = getpid();
        const Buffer buffer{&pid, 1, Dtype::int64, {}};
        world->broadcast(buffer, 1, "process of rank 1");
        world->barrier("the last call of all");
        if (world->rank() == 1) raise(SIGSTOP);
        const std::string error = error_of<CommError>([&] {
          int64_t sum = 1;
          world->all_reduce({&sum, 1, Dtype::int64}, {&sum, 1, Dtype::int64, {}}, ReduceOp::sum, "gradient");
        });
        if (world->rank() != 1) {
          EXPECT_THAT(error, AllOf(HasSubstr("rank 1 of 3 did not join within 1 s"), Not(HasSubstr("is lost"))));
          EXPECT_THAT(error, HasSubstr("rank 1 last called barrier \"the last call of all\""));
        }
        if (world->rank() == 0) kill(static_cast<pid_t>(pid), SIGCONT);
      },
      kShort, make_gloo_world);
  for (const RankEnd& end : ends) EXPECT_EQ(end.exit_code, 0) << end.output;
}

}  // namespace caravan::testing::gloo_kill_test
