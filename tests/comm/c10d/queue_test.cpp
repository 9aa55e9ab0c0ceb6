// What several works, groups and threads of one rank do to each other.
#include <atomic>
#include <thread>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "tests/comm/c10d/group.h"
#include "tests/ranks/rank_case.h"

namespace caravan::testing::queue_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

/// Two groups of one world: a thread completes the futures of one while this thread issues and waits on the other.
TEST(C10dQueue, FuturesOfOneGroupBesideCallsOfAnother) {
  run_thread_ranks(2,
                   [](const std::shared_ptr<Communicator>& world) {
                     const std::vector<int> all{0, 1};
                     C10dOptions options;
                     options.progress = std::make_shared<C10dProgress>();
                     const auto with_futures = make_group(world->split(all, "futures"), options);
                     const auto other = make_group(world->split(all, "other"), options);
                     for (int round = 0; round < 300; ++round) {
                       Tensors awaited{at::full({50}, 1.0)};
                       const auto work = with_futures->allreduce(awaited);
                       const auto future = work->getFuture();
                       std::vector<c10::intrusive_ptr<c10d::Work>> works;
                       std::vector<Tensors> tensors(20, Tensors(1));
                       for (Tensors& tensor : tensors) {
                         tensor[0] = at::full({50}, 2.0);
                         works.push_back(other->allreduce(tensor));
                       }
                       if (round % 2 == 0) {
                         for (const auto& each : works) each->wait();
                       }
                       future->wait();
                       for (const auto& each : works) each->wait();
                       ASSERT_TRUE(at::equal(awaited[0], at::full({50}, 2.0))) << round;
                       for (const Tensors& tensor : tensors)
                         ASSERT_TRUE(at::equal(tensor[0], at::full({50}, 4.0))) << round;
                     }
                   },
                   {.timeout = std::chrono::seconds(20)});
}

/// A large send waits for its receive, which waits for its turn on a rank that is waiting for another call.
TEST(C10dQueue, AReceiveBeginsWhileItsRankWaitsElsewhere) {
  run_thread_ranks(2,
                   [](const std::shared_ptr<Communicator>& world) {
                     const auto group = make_group(world);
                     Tensors message{at::full({3'000'000}, 1.0 + world->rank())};
                     Tensors sum{at::full({1}, 1.0)};
                     if (world->rank() == 0) {
                       const auto receiving = group->recv(message, 1, 4);
                       group->allreduce(sum)->wait();
                       receiving->wait();
                       EXPECT_TRUE(at::equal(message[0], at::full({3'000'000}, 2.0)));
                     } else {
                       group->send(message, 0, 4)->wait();
                       group->allreduce(sum)->wait();
                     }
                   },
                   {.timeout = std::chrono::seconds(20)});
}

/// If two receives match, the first takes the message. A receive from any source takes no message that an earlier
/// receive names, and leaves later messages to others.
TEST(C10dQueue, ReceivesMatchInTheOrderIssued) {
  run_thread_ranks(3,
                   [](const std::shared_ptr<Communicator>& world) {
                     const auto group = make_group(world);
                     const auto message = [](double value) { return Tensors{at::full({2}, value)}; };
                     if (world->rank() == 0) {
                       Tensors named = message(0);
                       Tensors any = message(0);
                       Tensors last = message(0);
                       const auto first = group->recv(named, 1, 7);
                       const auto second = group->recvAnysource(any, 7);
                       EXPECT_EQ(second->sourceRank(), -1);
                       group->barrier()->wait();
                       second->wait();
                       first->wait();
                       EXPECT_EQ(named[0][0].item<double>(), 11);
                       const int source = second->sourceRank();
                       EXPECT_EQ(any[0][0].item<double>(), source == 1 ? 12 : 21);
                       group->recv(last, 3 - source, 7)->wait();  // what the one from any source left
                       EXPECT_EQ(last[0][0].item<double>(), source == 1 ? 21 : 12);
                       group->barrier()->wait();
                       return;
                     }
                     group->barrier()->wait();
                     for (int i = 1; i <= (world->rank() == 1 ? 2 : 1); ++i) {
                       Tensors sent = message(10 * world->rank() + i);
                       group->send(sent, 0, 7)->wait();
                     }
                     group->barrier()->wait();
                   },
                   {.timeout = std::chrono::seconds(20)});
}

/// A group that ends normally after a receive from any source does not report an abandoned receive.
TEST(C10dQueue, NothingIsLeftBehindByAnySource) {
  run_thread_ranks(3,
                   [](const std::shared_ptr<Communicator>& world) {
                     auto group = make_group(world);
                     if (world->rank() == 0) {
                       Tensors buffer{at::zeros({2})};
                       group->recvAnysource(buffer, 0)->wait();
                       group->getBackend(c10::DeviceType::CPU)->shutdown();
                       return;
                     }
                     if (world->rank() == 1) {
                       Tensors sent{at::zeros({2})};
                       group->send(sent, 0, 0)->wait();
                       Tensors ball{at::full({2}, 1.0)};
                       group->send(ball, 2, 0)->wait();
                       group->recv(ball, 2, 0)->wait();
                       EXPECT_EQ(ball[0][0].item<float>(), 2);
                     } else {
                       Tensors ball{at::zeros({2})};
                       group->recv(ball, 1, 0)->wait();
                       ball[0].add_(1);
                       group->send(ball, 1, 0)->wait();
                     }
                   },
                   {.timeout = std::chrono::seconds(20)});
}

TEST(C10dQueue, ReceivesOfAnotherSizeAreAnError) {
  for (const bool comes_first : {false, true}) {
    run_thread_ranks(2,
                     [&](const std::shared_ptr<Communicator>& world) {
                       const auto group = make_group(world);
                       Tensors small{at::zeros({4})};
                       Tensors large{at::zeros({6})};
                       if (world->rank() == 0) {
                         group->send(small, 1, 1)->wait();
                         Tensors go{at::zeros({1})};
                         if (comes_first) group->send(go, 1, 2)->wait();
                         return;
                       }
                       Tensors go{at::zeros({1})};
                       if (comes_first) group->recv(go, 0, 2)->wait();  // the other message is stored meanwhile
                       const std::string error = error_of<CommError>([&] { group->recv(large, 0, 1)->wait(); });
                       EXPECT_THAT(error, AllOf(HasSubstr("[4]"), HasSubstr("[6]")));
                     },
                     {.timeout = std::chrono::seconds(20)});
  }
}

TEST(C10dQueue, AReceiveFromAnySourceTimesOut) {
  run_thread_ranks(
      2,
      [](const std::shared_ptr<Communicator>& world) {
        const auto group = make_group(world, {.timeout = std::chrono::milliseconds(300)});
        if (world->rank() == 0) {
          Tensors buffer{at::zeros({2})};
          EXPECT_THAT(error_of<CommError>([&] { group->recvAnysource(buffer, 0)->wait(); }),
                      AllOf(HasSubstr("recvAnysource"), HasSubstr("Timed out: no message arrived within 0.3 s")));
          return;
        }
        EXPECT_THAT(error_of<CommError>([&] { group->barrier()->wait(); }), HasSubstr("no message arrived"));
      },
      {.timeout = std::chrono::seconds(20)});
}

TEST(C10dQueue, AMonitoredBarrierNamesMissingRanks) {
  run_thread_ranks(3,
                   [](const std::shared_ptr<Communicator>& world) {
                     const auto group = make_group(world);
                     group->monitoredBarrier({}, true);
                     if (world->rank() == 1) {
                       EXPECT_THAT(error_of<CommError>([&] { group->barrier()->wait(); }),
                                   HasSubstr("did not join within 0.3 s"));
                       return;
                     }
                     c10d::BarrierOptions options;
                     options.timeout = std::chrono::milliseconds(300);
                     EXPECT_THAT(error_of<CommError>([&] { group->monitoredBarrier(options, false); }),
                                 AllOf(HasSubstr("Timed out: rank 1 of 3"), HasSubstr("within 0.3 s")));
                   },
                   {.timeout = std::chrono::seconds(20)});
}

std::atomic<int> num_begun{0};
std::atomic<int> num_ended{0};

std::unique_ptr<at::ObserverContext> count_begin(const at::RecordFunction& function) {
  if (std::string(function.name()) == "caravan:all_reduce" && function.inputs().size() == 1) ++num_begun;
  return nullptr;
}
void count_end(const at::RecordFunction& function, at::ObserverContext* /*context*/) {
  if (std::string(function.name()) == "caravan:all_reduce") ++num_ended;
}

TEST(C10dQueue, TheProfilerSeesEachCall) {
  const auto handle = at::addGlobalCallback(
      at::RecordFunctionCallback(count_begin, count_end).needsInputs(true).scopes({at::RecordScope::USER_SCOPE}));
  run_thread_ranks(2, [](const std::shared_ptr<Communicator>& world) {
    const auto group = make_group(world);
    Tensors tensors{at::full({3}, 1.0)};
    for (int i = 0; i < 4; ++i) group->allreduce(tensors)->wait();
  });
  at::removeCallback(handle);
  EXPECT_EQ(num_begun, 8);
  EXPECT_EQ(num_ended, 8);
}

}  // namespace
}  // namespace caravan::testing::queue_test
