#include <csignal>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "tests/comm/c10d/group.h"
#include "tests/ranks/process_ranks.h"
#include "tests/ranks/rank_case.h"

namespace caravan::testing::faults_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

class C10dFaults : public ::testing::TestWithParam<RankCase> {};

TEST_P(C10dFaults, MismatchedCallsAreAnErrorOnEveryRank) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const auto group = make_group(world);
    Tensors tensors{at::zeros({world->rank() == 1 ? 12 : 10})};
    const std::string error = error_of<CommError>([&] { group->allreduce(tensors)->wait(); });
    EXPECT_THAT(error, AllOf(HasSubstr("[10]"), HasSubstr("[12]")));
    EXPECT_EQ(error_of<CommError>([&] { group->barrier()->wait(); }), error) << "the group is dead";
  });
}

TEST_P(C10dFaults, AFailedWorkTellsItsFuture) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const auto group = make_group(world);
    Tensors tensors{at::zeros({4})};
    c10d::BroadcastOptions options;
    options.rootRank = world->rank() % 2;
    const auto work = group->broadcast(tensors, options);
    const auto future = work->getFuture();
    future->wait();
    EXPECT_TRUE(future->hasError());
    EXPECT_THAT(future->tryRetrieveErrorMessage(), HasSubstr("root"));
    EXPECT_TRUE(work->isCompleted());
    EXPECT_FALSE(work->isSuccess());
    EXPECT_NE(work->exception(), nullptr);
  });
}

/// The operation continues after the time-out of a single wait().
TEST_P(C10dFaults, AShortWaitDoesNotEndTheOperation) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const auto group = make_group(world);
    Tensors tensors{at::full({3}, 1.0 * world->rank())};
    if (world->rank() == 0) {
      const auto work = group->recv(tensors, 1, 0);
      EXPECT_THAT(error_of<CommError>([&] { work->wait(milliseconds(50)); }),
                  AllOf(HasSubstr("recv"), HasSubstr("0.05 s"), HasSubstr("wait again")));
      EXPECT_FALSE(work->isCompleted());
      Tensors go{at::zeros({1})};
      group->send(go, 1, 0)->wait();
      work->wait();
      EXPECT_TRUE(at::equal(tensors[0], at::full({3}, 1.0)));
    } else if (world->rank() == 1) {
      Tensors go{at::zeros({1})};
      group->recv(go, 0, 0)->wait();
      group->send(tensors, 0, 0)->wait();
    }
    group->barrier()->wait();
  });
}

/// A group that is shut down with outstanding operations tells the peers that wait for it.
TEST_P(C10dFaults, ShutdownWithOutstandingWorkIsAnErrorOnPeers) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    auto group = make_group(world);
    if (world->rank() == 0) {
      Tensors never{at::zeros({3})};
      const auto work = group->recv(never, 1, 0);
      group->getBackend(c10::DeviceType::CPU)->shutdown();
      EXPECT_THAT(error_of<CommError>([&] { work->wait(); }), HasSubstr("outstanding"));
      return;
    }
    const std::string error = error_of<CommError>([&] { group->barrier()->wait(); });
    EXPECT_THAT(error, AllOf(HasSubstr("rank 0"), HasSubstr("1 outstanding operations, the first a recv")));
  });
}

TEST_P(C10dFaults, AbortEndsAWait) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const auto group = make_group(world);
    if (world->rank() == 0) {
      group->getBackend(c10::DeviceType::CPU)->abort();
      return;
    }
    EXPECT_THAT(error_of<CommError>([&] { group->barrier()->wait(); }),
                AllOf(HasSubstr("rank 0"), HasSubstr("its process group was aborted")));
  });
}

INSTANTIATE_TEST_SUITE_P(Thread, C10dFaults, ::testing::ValuesIn(rank_cases("thread", {2, 3}, run_thread_ranks)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Shm, C10dFaults, ::testing::ValuesIn(rank_cases("shm", {3}, run_process_ranks)), case_name);

TEST(C10dKilled, TheDeadRankIsNamed) {
  const auto ends = run_processes(
      3,
      [](const std::shared_ptr<Communicator>& world) {
        const auto group = make_group(world);
        group->barrier()->wait();
        if (world->rank() == 1) ::raise(SIGKILL);
        Tensors tensors{at::zeros({1000})};
        EXPECT_THAT(error_of<CommError>([&] { group->allreduce(tensors)->wait(); }),
                    AllOf(HasSubstr("rank 1"), AnyOf(HasSubstr("ended"), HasSubstr("lost"), HasSubstr("died"))));
      },
      {.timeout = std::chrono::seconds(30)});
  EXPECT_EQ(ends[0].exit_code, 0) << ends[0].output;
  EXPECT_EQ(ends[1].signal, SIGKILL);
  EXPECT_EQ(ends[2].exit_code, 0) << ends[2].output;
}

}  // namespace
}  // namespace caravan::testing::faults_test
