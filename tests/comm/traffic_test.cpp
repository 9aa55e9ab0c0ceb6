#include "caravan/comm/record.h"
#include "tests/comm/program.h"
#include "tests/comm/reference.h"
#include "tests/comm/suites.h"

namespace caravan::testing::traffic_test {

/// A back-end that moves data counts what `record` counts, communicator by communicator and verb by verb.
TEST_P(TrafficCounts, MatchTheRecordBackEnd) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const std::vector<Traffic> moved = run_program(world);
    const std::vector<Traffic> recorded = run_program(make_record_world(world->rank(), world->size()));
    ASSERT_EQ(moved.size(), recorded.size());
    for (size_t i = 0; i < moved.size(); ++i) {
      EXPECT_EQ(moved[i].calls, recorded[i].calls) << i;
      EXPECT_EQ(moved[i].bytes, recorded[i].bytes) << i;
      EXPECT_GT(moved[i].total_calls(), 0);
    }
  });
}

/// The bytes of a ring are equal on all ranks. Those of chains and exchanges are not, so their sums over the ranks are
/// compared with what every algorithm sends that sends each element directly or along a chain.
TEST_P(TrafficCounts, SumsOverRanksMatchTheAlgorithms) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const int64_t n = world->size();
    const int64_t count = 60 * n;  // divisible by n: no rounding in the ring's formula
    Data one(count, Dtype::fp32);
    Data all(count * n, Dtype::fp32);
    const int64_t x = count * 4;
    world->all_reduce(one.buffer(), one.buffer(), ReduceOp::sum);
    world->all_gather(one.const_buffer(), all.buffer());
    world->reduce_scatter(all.const_buffer(), one.buffer(), ReduceOp::sum);
    Data out(count, Dtype::fp32);
    world->all_to_all(one.const_buffer(), out.buffer());
    world->broadcast(one.buffer(), static_cast<int>(n - 1));
    world->reduce(one.const_buffer(), out.buffer(), ReduceOp::sum, 0);
    std::array<int64_t, kNumVerbs> sums = world->traffic().bytes;
    world->all_reduce({sums.data(), kNumVerbs, Dtype::int64}, {sums.data(), kNumVerbs, Dtype::int64, {}},
                      ReduceOp::sum);
    const auto sum = [&](Verb verb) { return sums[static_cast<size_t>(verb)]; };
    EXPECT_EQ(sum(Verb::all_reduce), 2 * (n - 1) * x);
    EXPECT_EQ(sum(Verb::all_gather), n * (n - 1) * x);
    EXPECT_EQ(sum(Verb::reduce_scatter), n * (n - 1) * x) << "of n x bytes put in";
    EXPECT_EQ(sum(Verb::all_to_all), (n - 1) * x);
    EXPECT_EQ(sum(Verb::broadcast), (n - 1) * x);
    EXPECT_EQ(sum(Verb::reduce), (n - 1) * x);
  });
}

}  // namespace caravan::testing::traffic_test
