#include "caravan/comm/record.h"

#include <gmock/gmock.h>
#include <numeric>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "tests/ranks/rank_case.h"

namespace caravan::record_test {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

int64_t bytes(const Communicator& comm, Verb verb) { return comm.traffic().bytes[static_cast<size_t>(verb)]; }
int64_t calls(const Communicator& comm, Verb verb) { return comm.traffic().calls[static_cast<size_t>(verb)]; }

/// The documented byte counts, computed by hand: 1,000 elements of 4 bytes, 8 ranks.
TEST(Record, CountsTheBytesOfTheContract) {
  constexpr int kSize = 8;
  for (const int rank : {0, 3, 7}) {
    SCOPED_TRACE(rank);
    const auto world = make_record_world(rank, kSize);
    const Buffer one{nullptr, 1000, Dtype::fp32, {}};
    const Buffer all{nullptr, 8000, Dtype::fp32, {}};
    world->all_reduce(one, one, ReduceOp::sum);
    EXPECT_EQ(bytes(*world, Verb::all_reduce), 7000);
    world->all_gather(one, all);
    EXPECT_EQ(bytes(*world, Verb::all_gather), 28'000);
    world->reduce_scatter(all, one, ReduceOp::sum);
    EXPECT_EQ(bytes(*world, Verb::reduce_scatter), 28'000);
    const Buffer exchanged{nullptr, 1000, Dtype::fp32, {}};
    world->all_to_all(one, exchanged);
    EXPECT_EQ(bytes(*world, Verb::all_to_all), 3500);
    world->broadcast(one, 0);
    EXPECT_EQ(bytes(*world, Verb::broadcast), rank == 7 ? 0 : 4000);
    world->reduce(one, one, ReduceOp::max, 3);
    EXPECT_EQ(bytes(*world, Verb::reduce), rank == 3 ? 0 : 4000);
    const int peer = (rank + 1) % kSize;
    world->send(one, peer);
    world->recv(one, peer);
    world->barrier();
    EXPECT_EQ(bytes(*world, Verb::send), 4000);
    EXPECT_EQ(bytes(*world, Verb::recv), 0);
    EXPECT_EQ(bytes(*world, Verb::barrier), 0);
    for (int verb = 0; verb < kNumVerbs; ++verb) EXPECT_EQ(calls(*world, static_cast<Verb>(verb)), 1) << verb;
    EXPECT_EQ(world->traffic().total_calls(), kNumVerbs);
  }
}

TEST(Record, UnevenPartsCountWhatLeavesTheRank) {
  const auto world = make_record_world(1, 3);
  const std::vector<int64_t> counts{5, 2, 0};
  world->all_gather({nullptr, 2, Dtype::int64}, {nullptr, 7, Dtype::int64, {}}, counts);
  EXPECT_EQ(bytes(*world, Verb::all_gather), 2 * 2 * 8);
  world->reduce_scatter({nullptr, 7, Dtype::int64}, {nullptr, 2, Dtype::int64, {}}, ReduceOp::max, counts);
  EXPECT_EQ(bytes(*world, Verb::reduce_scatter), (5 + 0) * 8);
  const std::vector<int64_t> received{1, 2, 9};
  world->all_to_all({nullptr, 7, Dtype::uint8}, {nullptr, 12, Dtype::uint8, {}}, counts, received);
  EXPECT_EQ(bytes(*world, Verb::all_to_all), 5);
}

/// A mesh of 4 x 256 in a world larger than any machine, with buffers without memory.
TEST(Record, AnyWorldAnyCoordinateAnySize) {
  const auto world = make_record_world(517, 1024);
  std::vector<int> row(256);
  std::iota(row.begin(), row.end(), 512);
  std::vector<int> column{5, 261, 517, 773};
  const auto rows = world->split(row, "tp");
  const auto columns = world->split(column, "dp");
  EXPECT_EQ(rows->rank(), 5);
  EXPECT_EQ(columns->rank(), 2);
  EXPECT_EQ(rows->backend(), "record");
  const Buffer huge{nullptr, int64_t{1} << 40, Dtype::bf16, {}};
  rows->all_reduce(huge, huge, ReduceOp::sum);
  EXPECT_EQ(rows->traffic().total_bytes(), 2 * 255 * ((int64_t{1} << 41) / 256));
  EXPECT_EQ(columns->traffic().total_calls(), 0);
  EXPECT_EQ(world->traffic().total_calls(), 0);
}

TEST(Record, AsynchronousCallsEndWhenTheyAreWaitedFor) {
  const auto world = make_record_world(0, 2);
  Work work = world->recv_async({nullptr, 10, Dtype::fp32, {}}, 1);
  const auto kept = std::make_shared<int>(1);
  work.keep(kept);
  EXPECT_EQ(kept.use_count(), 2);
  EXPECT_FALSE(work.done());
  work.wait();
  EXPECT_EQ(kept.use_count(), 1);
  EXPECT_TRUE(work.done());
}

TEST(Record, RefusesWhatOtherBackEndsRefuse) {
  const auto world = make_record_world(1, 4);
  const auto error = [](const auto& call) { return error_of<UsageError>(call); };
  const Buffer ten{nullptr, 10, Dtype::fp32, {}};
  EXPECT_THAT(error([&] { world->broadcast(ten, 4); }), HasSubstr("no rank 4 to be the root"));
  EXPECT_THAT(error([&] { world->reduce_scatter(ten, ten, ReduceOp::sum); }), HasSubstr("the parts of the 4 ranks"));
  EXPECT_THAT(error([] { make_record_world(3, 3); }), HasSubstr("no rank 3 in a world of 3"));
  EXPECT_EQ(world->traffic().total_calls(), 0);
}

TEST(WireBytes, OneRankSendsNothing) {
  for (int verb = 0; verb < kNumVerbs; ++verb) EXPECT_EQ(wire_bytes(static_cast<Verb>(verb), 0, 1, 100, 100, 0), 0);
}

TEST(WireBytes, DoNotOverflow) {
  const int64_t most = int64_t{1} << 61;
  EXPECT_EQ(wire_bytes(Verb::all_reduce, 0, 1024, most, 0, -1), 2 * 1023 * (most / 1024));
}

}  // namespace
}  // namespace caravan::record_test
