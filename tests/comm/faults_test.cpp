#include <chrono>
#include <functional>
#include <numeric>
#include <string>
#include <thread>

#include "caravan/base/error.h"
#include "tests/comm/reference.h"
#include "tests/comm/suites.h"

namespace caravan::testing::faults_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kSoon{150};

std::vector<int> all_ranks(const Communicator& comm) {
  std::vector<int> ranks(comm.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// A call in which rank 0 differs from the others, and the text of both sides in the error.
struct Difference {
  std::string odd;     ///< of rank 0
  std::string common;  ///< of the others
  std::function<void(Communicator&, bool is_odd)> call;
};

std::vector<Difference> differences() {
  return {{"all_reduce max fp32 [4]", "all_reduce sum fp32 [4]",
           [](Communicator& comm, bool odd) {
             float data[4] = {};
             const Buffer buffer{data, 4, Dtype::fp32, {}};
             comm.all_reduce(buffer, buffer, odd ? ReduceOp::max : ReduceOp::sum);
           }},
          {"all_reduce sum int32 [4]", "all_reduce sum fp32 [4]",
           [](Communicator& comm, bool odd) {
             float data[4] = {};
             const Buffer buffer{data, 4, odd ? Dtype::int32 : Dtype::fp32, {}};
             comm.all_reduce(buffer, buffer, ReduceOp::sum);
           }},
          {"all_reduce sum fp32 [3]", "all_reduce sum fp32 [4]",
           [](Communicator& comm, bool odd) {
             float data[4] = {};
             const Buffer buffer{data, odd ? 3 : 4, Dtype::fp32, {}};
             comm.all_reduce(buffer, buffer, ReduceOp::sum);
           }},
          {"broadcast fp32 [4] root 1", "broadcast fp32 [4] root 0",
           [](Communicator& comm, bool odd) {
             float data[4] = {};
             comm.broadcast({data, 4, Dtype::fp32, {}}, odd ? 1 : 0);
           }},
          {"reduce min fp32 [1] root 0", "broadcast fp32 [1] root 0",
           [](Communicator& comm, bool odd) {
             float data[1] = {};
             const Buffer buffer{data, 1, Dtype::fp32, {}};
             if (odd) {
               comm.reduce(buffer, buffer, ReduceOp::min, 0);
             } else {
               comm.broadcast(buffer, 0);
             }
           }},
          {"barrier", "all_gather uint8 [2]",
           [](Communicator& comm, bool odd) {
             const uint8_t in[2] = {};
             std::vector<uint8_t> out(static_cast<size_t>(2 * comm.size()));
             if (odd) {
               comm.barrier();
             } else {
               comm.all_gather({in, 2, Dtype::uint8}, {out.data(), 2 * comm.size(), Dtype::uint8, {}});
             }
           }},
          {"split", "barrier", [](Communicator& comm, bool odd) {
             if (odd) {
               comm.split(all_ranks(comm), "part");
             } else {
               comm.barrier();
             }
           }}};
}

}  // namespace

TEST_P(Faults, DifferentCallsAreAnErrorOnEveryRank) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    for (const Difference& difference : differences()) {
      SCOPED_TRACE(difference.odd + " / " + difference.common);
      const auto group = world->split(all_ranks(*world), "group");
      group->barrier();  // the next operation is number 1
      const auto call = [&] { difference.call(*group, group->rank() == 0); };
      const std::string error = error_of<CommError>(call);
      const std::string others = world->size() == 2 ? "rank 1: " : "ranks 1, ";
      EXPECT_THAT(error, AllOf(HasSubstr("rank 0: " + difference.odd), HasSubstr(others), HasSubstr(difference.common),
                               HasSubstr("at comm/faults_test.cpp:"), HasSubstr("operation 1")));
      EXPECT_EQ(error_of<CommError>([&] { group->barrier(); }), error) << "it is dead, with its first error";
      world->barrier();  // the world is not dead
    }
  });
}

/// Refused before anything is sent, so the communicator stays alive.
TEST_P(Faults, WrongArgumentsAreRefused) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const int n = world->size();
    std::vector<float> memory(64);
    const auto floats = [&](int64_t begin, int64_t count) { return Buffer{&memory[begin], count, Dtype::fp32, {}}; };
    const auto expect = [&](const std::string& fact, const auto& call) {
      EXPECT_THAT(error_of<UsageError>(call), AllOf(HasSubstr(fact), HasSubstr("of \"world\", comm/faults_test.cpp:")));
    };
    const auto sum = [&](ConstBuffer in, Buffer out) { return [=] { world->all_reduce(in, out, ReduceOp::sum); }; };
    expect("in has 2 elements, out has 3", sum(floats(0, 2), floats(2, 3)));
    expect("in is fp32, out is int32", sum(floats(0, 2), {&memory[8], 2, Dtype::int32, {}}));
    expect("overlap", sum(floats(0, 4), floats(1, 4)));
    expect("there is no sum of boolean",
           sum({memory.data(), 4, Dtype::boolean}, {memory.data(), 4, Dtype::boolean, {}}));
    expect("a count of -1", sum({memory.data(), -1, Dtype::fp32}, {memory.data(), -1, Dtype::fp32, {}}));
    expect("4 elements and no memory", sum({nullptr, 4, Dtype::fp32}, {nullptr, 4, Dtype::fp32, {}}));
    expect("host memory", sum({memory.data(), 4, Dtype::fp32, {DeviceKind::cuda, 0}}, floats(8, 4)));
    expect("there is no rank -1", [&] { world->broadcast(floats(0, 1), -1); });
    expect("is this rank itself", [&] { world->send(floats(0, 1), world->rank()); });
    expect("there is no rank " + std::to_string(n), [&] { world->recv(floats(0, 1), n); });
    expect("the parts of the", [&] { world->all_gather(floats(0, 2), floats(8, 2 * n + 1)); });
    const std::vector<int64_t> negative(n, -1);
    expect("negative number", [&] { world->all_gather(floats(0, 2), floats(8, 2 * n), negative); });
    const std::vector<int64_t> too_many(n + 1, 1);
    expect("numbers for", [&] { world->all_gather(floats(0, 1), floats(8, n + 1), too_many); });
    expect("in and out overlap", [&] { world->all_to_all(floats(0, n), floats(0, n)); });
    EXPECT_EQ(world->traffic().total_calls(), 0);
    world->barrier();
  });
}

TEST_P(Faults, DifferentPartsAreNamed) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const int n = world->size();
    const bool odd = world->rank() == n - 1;
    std::vector<float> in(100);
    std::vector<float> out(100);
    std::vector<int64_t> counts(n, 2);
    // The odd rank expects 3 elements from rank 0.
    if (odd) counts[0] = 3;
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});

    const auto gather = world->split(all_ranks(*world), "gather");
    const auto call = [&] {
      gather->all_gather({in.data(), 2, Dtype::fp32}, {out.data(), total, Dtype::fp32, {}}, counts);
    };
    const std::string right = n == 2 ? "(parts 2, 2)" : "(parts 2, 2,";
    EXPECT_THAT(error_of<CommError>(call), AllOf(HasSubstr(right), HasSubstr("(parts 3, 2")));

    // All ranks send 2 elements to each rank; the odd rank expects 3 from rank 0.
    const auto exchange = world->split(all_ranks(*world), "exchange");
    const std::vector<int64_t> sent(n, 2);
    const auto exchange_call = [&] {
      exchange->all_to_all({in.data(), 2 * n, Dtype::fp32}, {out.data(), total, Dtype::fp32, {}}, sent, counts);
    };
    const std::string rank = std::to_string(n - 1);
    EXPECT_THAT(error_of<CommError>(exchange_call), AllOf(HasSubstr("rank 0 sends 2 elements to rank " + rank),
                                                          HasSubstr("rank " + rank + " expects 3 from rank 0")));
    world->barrier();
  });
}

TEST_P(Faults, AMismatchedMessageIsAnErrorOnBothSides) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const auto group = world->split(all_ranks(*world), "group");
    std::vector<float> data(8);
    if (group->rank() == 0) {
      // A message this small is sent at once; the next call throws the error.
      const std::string error = error_of<CommError>([&] {
        group->send({data.data(), 8, Dtype::fp32}, 1, "letter");
        group->barrier();
      });
      EXPECT_THAT(error, AllOf(HasSubstr("send fp32 [8] to 1 \"letter\""), HasSubstr("recv fp32 [7] from 0")));
    } else if (group->rank() == 1) {
      const std::string error = error_of<CommError>([&] { group->recv({data.data(), 7, Dtype::fp32, {}}, 0); });
      EXPECT_THAT(error, AllOf(HasSubstr("rank 0: send fp32 [8] to 1"), HasSubstr("rank 1: recv fp32 [7] from 0")));
    } else {
      EXPECT_THAT(error_of<CommError>([&] { group->barrier(); }), HasSubstr("rank 1 failed first"));
    }
    world->barrier();
  });
}

/// The error of rank 1, which receives under the label `received` what rank 0 sends under `sent`. Both get it.
std::string difference_of_labels(Communicator& world, const std::string& sent, const std::string& received) {
  const auto group = world.split(all_ranks(world), "group");
  std::vector<float> data(8);
  std::string error;
  if (group->rank() == 0) {
    error = error_of<CommError>([&] {
      group->send({data.data(), 8, Dtype::fp32}, 1, sent);
      group->barrier();
    });
  } else if (group->rank() == 1) {
    error = error_of<CommError>([&] { group->recv({data.data(), 8, Dtype::fp32, {}}, 0, received); });
    EXPECT_THAT(error, HasSubstr("the calls of sender and receiver differ"));
  } else {
    EXPECT_THAT(error_of<CommError>([&] { group->barrier(); }), HasSubstr("rank 1 failed first"));
  }
  world.barrier();
  return error;
}

/// Messages of the same size and dtype in another order.
TEST_P(Faults, MessagesWithDifferentLabelsAreAnError) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const std::string error = difference_of_labels(*world, "keys, turn 1", "gradient of keys, turn 1");
    if (world->rank() > 1) return;
    EXPECT_THAT(error, AllOf(HasSubstr("rank 0: send fp32 [8] to 1 \"keys, turn 1\""),
                             HasSubstr("rank 1: recv fp32 [8] from 0 \"gradient of keys, turn 1\"")));
  });
}

/// Labels are compared as a whole, although a call keeps and shows only their beginning.
TEST_P(Faults, LongLabelsThatEndDifferentlyAreAnError) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const std::string long_name(80, 'x');
    const std::string error = difference_of_labels(*world, long_name + "1", long_name + "2");
    if (world->rank() <= 1) {
      EXPECT_THAT(error, HasSubstr("\"" + long_name.substr(0, 46) + "~"));
    }
  });
}

TEST_P(Faults, TimeOutNamesOperationPlaceAndMissingRanks) {
  GetParam().run(
      [](const std::shared_ptr<Communicator>& world) {
        const auto group = world->split(all_ranks(*world), "data parallel");
        const auto side = world->split(all_ranks(*world), "side");
        const int late = world->size() - 1;
        group->barrier("the last call of all");
        if (world->rank() != late) {
          float data[3] = {};
          const Buffer buffer{data, 3, Dtype::fp32, {}};
          Work work = group->all_reduce_async(buffer, buffer, ReduceOp::sum, "gradient bucket 3");
          const std::string error = error_of<CommError>([&] { work.wait(); });
          EXPECT_THAT(error,
                      AllOf(HasSubstr("[all_reduce] gradient bucket 3"), HasSubstr("operation 1"),
                            HasSubstr("comm/faults_test.cpp:"), HasSubstr("rank " + std::to_string(late) + " of"),
                            HasSubstr("did not join within"), HasSubstr("data parallel")));
          EXPECT_THAT(error, HasSubstr("world rank " + std::to_string(late) + " last called barrier \""));
        }
        // done() has no time-out: the late rank is alive, it just did not issue the call.
        Work work = side->barrier_async("all have their error");
        while (!work.done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      },
      kSoon);
}

/// Messages of an operation that was given up must not block the connection for other communicators.
TEST_P(Faults, LateRankDisturbsNoOtherCommunicator) {
  GetParam().run(
      [](const std::shared_ptr<Communicator>& world) {
        const auto group = world->split(all_ranks(*world), "group");
        const auto side = world->split(all_ranks(*world), "side");
        const auto meet = [&](const char* what) {
          Work work = side->barrier_async(what);  // done() has no time-out
          for (int i = 0; i < 20'000 && !work.done(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          ASSERT_TRUE(work.done()) << what;
        };
        const bool late = world->rank() == world->size() - 1;
        float data[3] = {};
        const Buffer buffer{data, 3, Dtype::fp32, {}};
        const auto call = [&] { group->all_reduce(buffer, buffer, ReduceOp::sum); };
        if (!late) {
          EXPECT_NE(error_of<CommError>(call), "");
        }
        meet("all others have given up");
        if (late) {
          EXPECT_NE(error_of<CommError>(call), "");
        }
        meet("all have their error");
      },
      kSoon);
}

TEST_P(Faults, MissingSenderIsNamed) {
  GetParam().run(
      [](const std::shared_ptr<Communicator>& world) {
        const auto side = world->split(all_ranks(*world), "side");
        if (world->rank() == 1) {
          int64_t number = 0;
          const std::string error = error_of<CommError>([&] {
            world->recv({&number, 1, Dtype::int64, {}}, 0, "activations");
          });
          EXPECT_THAT(error, AllOf(HasSubstr("[recv] activations"), HasSubstr("rank 0 of"),
                                   HasSubstr("did not join within 0.")));
        }
        Work work = side->barrier_async();
        while (!work.done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      },
      kSoon);
}

TEST_P(Faults, AbortingRankIsNamed) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const auto group = world->split(all_ranks(*world), "group");
    if (world->rank() == 1) world->abort("the disk is full");
    const std::string error = error_of<CommError>([&] {
      while (true) group->barrier();
    });
    EXPECT_THAT(error, HasSubstr("rank 1 of the world aborted: the disk is full"));
    EXPECT_THAT(error_of<CommError>([&] { world->barrier(); }), HasSubstr("the disk is full"));
  });
}

TEST_P(Faults, RankThatLeavesIsNamed) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    auto group = world->split(all_ranks(*world), "group");
    if (world->rank() == 0) {
      group.reset();
    } else {
      const std::string error = error_of<CommError>([&] { group->barrier("after the last step"); });
      EXPECT_THAT(error, AllOf(HasSubstr("after the last step"), HasSubstr("rank 0 of"), HasSubstr("left")));
    }
    world->barrier();
  });
}

TEST_P(Faults, ErrorEndsEverythingOutstanding) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const auto group = world->split(all_ranks(*world), "group");
    std::vector<float> data(10);
    const Buffer buffer{data.data(), 10, Dtype::fp32, {}};
    const Buffer shorter{data.data(), group->rank() == 0 ? 5 : 6, Dtype::fp32, {}};
    Work good = group->broadcast_async(buffer, 0);
    Work bad = group->all_reduce_async(shorter, shorter, ReduceOp::sum, "bad");
    Work after;
    // The third call may already throw the error.
    try {
      after = group->barrier_async();
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("\"bad\""));
    }
    const std::string error = error_of<CommError>([&] { bad.wait(); });
    EXPECT_THAT(error, AllOf(HasSubstr("fp32 [5] \"bad\""), HasSubstr("fp32 [6] \"bad\"")));
    EXPECT_NO_THROW(good.wait()) << "what was complete before the error stays so";
    EXPECT_EQ(error_of<CommError>([&] { bad.wait(); }), error) << "again";
    world->barrier();
  });
}

}  // namespace caravan::testing::faults_test
