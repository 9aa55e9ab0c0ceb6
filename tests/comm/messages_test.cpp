#include <numeric>

#include "tests/comm/reference.h"
#include "tests/comm/suites.h"

namespace caravan::testing::messages_test {
namespace {

// Less than a slot of a mailbox, a few slots, many slots.
constexpr int64_t kSizes[] = {0, 1, 1037, 40'001, 500'001};

std::vector<int> all_of(const Communicator& comm) {
  std::vector<int> ranks(static_cast<size_t>(comm.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// All ranks send to and receive from all others at once.
void exchange(Communicator& comm, int64_t count, Dtype dtype, int salt) {
  std::vector<Data> sent(comm.size());
  std::vector<Data> received(comm.size());
  std::vector<Work> works;
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == comm.rank()) continue;
    sent[peer] = input_of(comm.rank(), count, dtype, salt + peer);
    received[peer] = Data(count, dtype);
    works.push_back(comm.send_async(sent[peer].const_buffer(), peer, "exchange"));
    works.push_back(comm.recv_async(received[peer].buffer(), peer, "exchange"));
  }
  for (Work& work : works) work.wait();
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == comm.rank()) continue;
    EXPECT_TRUE(received[peer] == input_of(peer, count, dtype, salt + comm.rank())) << count << " from " << peer;
  }
}

}  // namespace

TEST_P(Messages, AllToAllAtOnce) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    for (const int64_t count : kSizes) exchange(*world, world->size() > 4 ? count % 1500 : count, Dtype::fp32, 1);
    for (const Dtype dtype : kDtypes) exchange(*world, 333, dtype, 2);
  });
}

TEST_P(Messages, SmallMessagesDoNotWaitForTheReceiver) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const int next = (world->rank() + 1) % world->size();
    const int before = (world->rank() + world->size() - 1) % world->size();
    if (world->size() == 1) return;
    Data token = input_of(world->rank(), 100, Dtype::fp64);
    world->send(token.const_buffer(), next);  // on every rank before any recv
    Data received(100, Dtype::fp64);
    world->recv(received.buffer(), before);
    EXPECT_TRUE(received == input_of(before, 100, Dtype::fp64));
  });
}

/// The n-th send matches the n-th recv, for any sizes and any order in which the handles are waited for.
TEST_P(Messages, KeepTheirOrder) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    if (world->size() == 1) return;
    constexpr int kMessages = 12;
    const auto count_of = [](int i) { return i % 3 == 0 ? int64_t{60'000} : int64_t{i}; };
    if (world->rank() == 0) {
      std::vector<Data> data;
      std::vector<Work> works;
      for (int i = 0; i < kMessages; ++i) data.push_back(input_of(0, count_of(i), Dtype::int32, i));
      for (int i = 0; i < kMessages; ++i) works.push_back(world->send_async(data[i].const_buffer(), 1));
      for (int i = kMessages - 1; i >= 0; --i) works[i].wait();
    } else if (world->rank() == 1) {
      std::vector<Data> data;
      std::vector<Work> works;
      for (int i = 0; i < kMessages; ++i) data.push_back(Data(count_of(i), Dtype::int32));
      for (int i = 0; i < kMessages; ++i) works.push_back(world->recv_async(data[i].buffer(), 0));
      works[5].wait();
      EXPECT_TRUE(data[5] == input_of(0, count_of(5), Dtype::int32, 5));
      for (Work& work : works) work.wait();
      for (int i = 0; i < kMessages; ++i) EXPECT_TRUE(data[i] == input_of(0, count_of(i), Dtype::int32, i)) << i;
    }
  });
}

/// A missing label matches any other; without `check` labels are not compared.
TEST_P(Messages, LabelsMatchIfOneIsMissingOrThereIsNoCheck) {
  for (const bool check : {true, false}) {
    const auto body = [check](const std::shared_ptr<Communicator>& world) {
      const auto group = world->split(all_of(*world), "group");
      int64_t number = 40 + group->rank();
      if (group->rank() == 0 && group->size() > 1) {
        group->send({&number, 1, Dtype::int64}, 1, "a label");
        group->send({&number, 1, Dtype::int64}, 1);
        if (!check) group->send({&number, 1, Dtype::int64}, 1, "a label");
      } else if (group->rank() == 1) {
        group->recv({&number, 1, Dtype::int64, {}}, 0);
        group->recv({&number, 1, Dtype::int64, {}}, 0, "another label");
        if (!check) group->recv({&number, 1, Dtype::int64, {}}, 0, "another label");
        EXPECT_EQ(number, 40);
      }
      group->barrier();
    };
    GetParam().run_ranks(GetParam().ranks, body, {.timeout = std::chrono::seconds(30), .check = check});
  }
}

/// A pipeline: each rank passes the message of its left neighbour on to the right, while a collective is in flight.
TEST_P(Messages, DoNotWaitForCollectives) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    Data total(1000, Dtype::int64);
    Work sum;
    Data piece = input_of(0, 50'000, Dtype::fp32);
    if (world->rank() > 0) {
      piece = Data(50'000, Dtype::fp32);
      const Work receiving = world->recv_async(piece.buffer(), world->rank() - 1);
      sum = world->all_reduce_async(total.buffer(), total.buffer(), ReduceOp::max);
      Work(receiving).wait();
    } else {
      sum = world->all_reduce_async(total.buffer(), total.buffer(), ReduceOp::max);
    }
    EXPECT_TRUE(piece == input_of(0, 50'000, Dtype::fp32));
    if (world->rank() + 1 < world->size()) world->send(piece.const_buffer(), world->rank() + 1);
    sum.wait();
  });
}

}  // namespace caravan::testing::messages_test
