#include <algorithm>
#include <numeric>

#include "tests/comm/reference.h"
#include "tests/comm/suites.h"

namespace caravan::testing::asynchrony_test {
namespace {

std::vector<int> all_ranks(const Communicator& comm) {
  std::vector<int> ranks(comm.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// Alternates sizes of less and more than one chunk.
int64_t count_of(int i) { return i % 4 == 3 ? 90'001 : 10 * i; }

}  // namespace

/// Each rank waits for the same operations in a different order, on two communicators.
TEST_P(Asynchrony, AnyOrderOfWaits) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    constexpr int kOperations = 16;
    const auto other = world->split(all_ranks(*world), "other");
    std::vector<Data> data;
    std::vector<Work> works;
    for (int i = 0; i < kOperations; ++i) data.push_back(input_of(world->rank(), count_of(i), Dtype::fp32, i));
    for (int i = 0; i < kOperations; ++i) {
      Communicator& comm = i % 3 == 0 ? *other : *world;
      works.push_back(comm.all_reduce_async(data[i].buffer(), data[i].buffer(), ReduceOp::sum));
    }
    std::vector<int> order(kOperations);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::rotate(order, order.begin() + 5 * world->rank() % kOperations);
    if (world->rank() % 2 == 1) std::ranges::reverse(order);
    for (const int i : order) {
      works[i].wait();
      const Data expected = reduced(inputs_of(world->size(), count_of(i), Dtype::fp32, i), ReduceOp::sum);
      EXPECT_TRUE(data[i] == expected) << i;
    }
  });
}

TEST_P(Asynchrony, AWaitThatTimesOutMayBeRepeated) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    if (world->size() == 1) return;
    Data data = input_of(world->rank(), 5000, Dtype::fp32);
    Data go(1, Dtype::int32);
    if (world->rank() != 0) world->recv(go.buffer(), 0);
    Work work = world->all_reduce_async(data.buffer(), data.buffer(), ReduceOp::sum);
    if (world->rank() == 0) {
      EXPECT_FALSE(work.wait_for(std::chrono::milliseconds(5))) << "no other rank has begun";
      EXPECT_EQ(work.error(), nullptr);
      for (int peer = 1; peer < world->size(); ++peer) world->send(go.const_buffer(), peer);
    }
    EXPECT_TRUE(work.wait_for(std::chrono::seconds(30)));
    EXPECT_TRUE(work.done());
    EXPECT_EQ(work.error(), nullptr);
    EXPECT_TRUE(data == reduced(inputs_of(world->size(), 5000, Dtype::fp32), ReduceOp::sum));
  });
}

/// Rank 0 waits on one communicator for ranks that call only after it has made progress on the other one.
TEST_P(Asynchrony, WaitProgressesTheOtherCommunicators) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const auto other = world->split(all_ranks(*world), "other");
    Data large = input_of(world->rank(), 300'001, Dtype::fp32, 1);  // many rounds: no rank completes it alone
    Work first = other->all_reduce_async(large.buffer(), large.buffer(), ReduceOp::max);
    if (world->rank() == 0) {
      world->barrier();
      first.wait();
    } else {
      first.wait();
      world->barrier();
    }
    EXPECT_TRUE(large == reduced(inputs_of(world->size(), 300'001, Dtype::fp32, 1), ReduceOp::max));
  });
}

TEST_P(Asynchrony, DroppedHandlesStillComplete) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    std::vector<Data> data;
    for (int i = 0; i < 6; ++i) data.push_back(input_of(world->rank(), count_of(i), Dtype::int64, i));
    {
      const auto part = world->split(all_ranks(*world), "part");
      for (int i = 0; i < 3; ++i) part->all_reduce_async(data[i].buffer(), data[i].buffer(), ReduceOp::min);
    }  // destroyed with operations outstanding: they are complete now
    for (int i = 3; i < 6; ++i) world->all_reduce_async(data[i].buffer(), data[i].buffer(), ReduceOp::min);
    world->barrier();
    for (int i = 0; i < 6; ++i) {
      const Data expected = reduced(inputs_of(world->size(), count_of(i), Dtype::int64, i), ReduceOp::min);
      EXPECT_TRUE(data[i] == expected) << i;
    }
  });
}

TEST_P(Asynchrony, DoneMakesProgress) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    Data data = input_of(world->rank(), 200'001, Dtype::fp64, 3);
    Work work = world->all_reduce_async(data.buffer(), data.buffer(), ReduceOp::sum);
    while (!work.done()) world->progress();
    EXPECT_TRUE(work.done());
    EXPECT_TRUE(data == reduced(inputs_of(world->size(), 200'001, Dtype::fp64, 3), ReduceOp::sum));
    work.wait();  // again, at once
  });
}

TEST_P(Asynchrony, KeepsObjectsAliveUntilCompletion) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const auto kept = std::make_shared<Data>(input_of(world->rank(), 100'000, Dtype::fp32));
    const auto kept_too = std::make_shared<int>(1);
    Work work = world->broadcast_async(kept->buffer(), 0);
    work.keep(kept);
    work.keep(kept_too);
    // Rank 0's own part may be complete when it has sent; the others need it, and have not called yet.
    if (!work.done()) {
      EXPECT_EQ(kept.use_count(), 2);
      EXPECT_EQ(kept_too.use_count(), 2);
    }
    work.wait();
    EXPECT_EQ(kept.use_count(), 1);
    EXPECT_EQ(kept_too.use_count(), 1);
    EXPECT_TRUE(*kept == input_of(0, 100'000, Dtype::fp32));
  });
}

}  // namespace caravan::testing::asynchrony_test
