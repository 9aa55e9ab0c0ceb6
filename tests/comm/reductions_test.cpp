#include <array>
#include <limits>
#include <string>

#include "tests/comm/reference.h"
#include "tests/comm/suites.h"

namespace caravan::testing::reductions_test {
namespace {

std::string text(Verb verb, Dtype dtype, ReduceOp op, int64_t count) {
  return std::string(name(verb)) + " " + std::string(name(op)) + " " + std::string(name(dtype)) + " " +
         std::to_string(count);
}

void check_all_reduce(Communicator& comm, Dtype dtype, ReduceOp op, int64_t count) {
  SCOPED_TRACE(text(Verb::all_reduce, dtype, op, count));
  const std::vector<Data> inputs = inputs_of(comm.size(), count, dtype);
  const Data expected = reduced(inputs, op);
  const Data in = inputs[comm.rank()];
  Data out(count, dtype);
  comm.all_reduce(in.const_buffer(), out.buffer(), op);
  EXPECT_TRUE(out == expected);
  EXPECT_TRUE(in == inputs[comm.rank()]) << "in was written";

  Data both = in;
  comm.all_reduce(both.buffer(), both.buffer(), op, "in place");
  EXPECT_TRUE(both == expected) << "in place";
}

void check_reduce(Communicator& comm, Dtype dtype, ReduceOp op, int64_t count, int root) {
  SCOPED_TRACE(text(Verb::reduce, dtype, op, count) + " root " + std::to_string(root));
  const std::vector<Data> inputs = inputs_of(comm.size(), count, dtype, 1);
  const Data in = inputs[comm.rank()];
  Data out(count, dtype);
  const Data untouched = out;
  comm.reduce(in.const_buffer(), out.buffer(), op, root);
  EXPECT_TRUE(out == (comm.rank() == root ? reduced(inputs, op) : untouched));

  Data both = in;
  comm.reduce(both.buffer(), comm.rank() == root ? both.buffer() : Buffer{}, op, root, "in place");
  EXPECT_TRUE(both == (comm.rank() == root ? reduced(inputs, op) : in)) << "in place";
}

void check_reduce_scatter(Communicator& comm, Dtype dtype, ReduceOp op, std::vector<int64_t> counts, bool give) {
  int64_t total = 0;
  int64_t begin = 0;
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (rank < comm.rank()) begin += counts[rank];
    total += counts[rank];
  }
  SCOPED_TRACE(text(Verb::reduce_scatter, dtype, op, total));
  const std::vector<Data> inputs = inputs_of(comm.size(), total, dtype, 2);
  const Data expected = reduced(inputs, op).copy_of_part(begin, counts[comm.rank()]);
  const Data in = inputs[comm.rank()];
  Data out(counts[comm.rank()], dtype);
  const std::span<const int64_t> given = give ? std::span<const int64_t>(counts) : std::span<const int64_t>();
  comm.reduce_scatter(in.const_buffer(), out.buffer(), op, given);
  EXPECT_TRUE(out == expected);
  EXPECT_TRUE(in == inputs[comm.rank()]) << "in was written";

  Data both = in;
  comm.reduce_scatter(both.buffer(), both.part(begin, counts[comm.rank()]), op, given, "in place");
  EXPECT_TRUE(both.copy_of_part(begin, counts[comm.rank()]) == expected) << "in place";
}

void check_all(Communicator& comm, Dtype dtype, ReduceOp op, int64_t count) {
  check_all_reduce(comm, dtype, op, count);
  check_reduce(comm, dtype, op, count, static_cast<int>(count) % comm.size());
  check_reduce_scatter(comm, dtype, op, std::vector<int64_t>(comm.size(), count), count % 2 == 0);
}

}  // namespace

TEST_P(Reductions, EveryDtypeAndOp) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    for (const Dtype dtype : kDtypes) {
      for (const ReduceOp op : kOps) {
        if (!reduces(op, dtype)) continue;
        for (const int64_t count : {0, 1, 1037}) check_all(*world, dtype, op, count);
      }
    }
  });
}

TEST_P(LargeSizes, Reductions) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    check_all_reduce(*world, Dtype::fp32, ReduceOp::sum, 700'001);
    check_all_reduce(*world, Dtype::uint8, ReduceOp::max, 1'500'001);
    check_reduce(*world, Dtype::bf16, ReduceOp::sum, 600'001, world->size() - 1);
    check_reduce_scatter(*world, Dtype::fp64, ReduceOp::sum, std::vector<int64_t>(world->size(), 100'003), true);
    check_reduce_scatter(*world, Dtype::int32, ReduceOp::min, std::vector<int64_t>(world->size(), 90'001), false);
    check_reduce_scatter(*world, Dtype::fp32, ReduceOp::sum, uneven_counts(world->size(), 60'000), true);
  });
}

TEST_P(Reductions, UnevenParts) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    for (const int64_t scale : {1, 100}) {
      check_reduce_scatter(*world, Dtype::fp32, ReduceOp::sum, uneven_counts(world->size(), scale), true);
      check_reduce_scatter(*world, Dtype::fp16, ReduceOp::max, uneven_counts(world->size(), scale), true);
    }
    check_reduce_scatter(*world, Dtype::fp32, ReduceOp::sum, std::vector<int64_t>(world->size()), true);
  });
}

/// 1e8 - 1e8 + 1 is 1 in this order only. Every element must be summed in rank order, or, where a back-end knows hosts,
/// on each host and then between hosts.
TEST_P(Reductions, SumsAreTakenInRankOrder) {
  GetParam().run([hosts = GetParam().hosts](const std::shared_ptr<Communicator>& world) {
    const std::array<float, 4> terms{1e8F, 1.0F, -1e8F, 3.0F};
    constexpr int64_t kCount = 1000;
    std::vector<float> data(kCount);
    std::vector<float> expected(kCount);
    for (int64_t i = 0; i < kCount; ++i) {
      data[i] = terms[(world->rank() + i) % 4];
      int rank = 0;
      for (const int ranks : hosts.empty() ? std::vector<int>{world->size()} : hosts) {
        float sum = terms[(rank + i) % 4];
        for (const int end = rank++ + ranks; rank < end; ++rank) sum += terms[(rank + i) % 4];
        expected[i] = rank == ranks ? sum : expected[i] + sum;
      }
    }
    const Buffer buffer{data.data(), kCount, Dtype::fp32, {}};
    world->all_reduce(buffer, buffer, ReduceOp::sum);
    EXPECT_EQ(data, expected);
  });
}

TEST_P(Reductions, NanWinsAndInfinityStays) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const bool last = world->rank() == world->size() - 1;
    const float infinity = std::numeric_limits<float>::infinity();
    for (const ReduceOp op : kOps) {
      std::array<float, 3> data{last ? std::numeric_limits<float>::quiet_NaN() : 1.0F, last ? infinity : 1.0F,
                                last ? -infinity : 1.0F};
      const Buffer buffer{data.data(), 3, Dtype::fp32, {}};
      world->all_reduce(buffer, buffer, op);
      EXPECT_NE(data[0], data[0]) << name(op);
      const bool alone = world->size() == 1;
      EXPECT_EQ(data[1], op == ReduceOp::min && !alone ? 1.0F : infinity) << name(op);
      EXPECT_EQ(data[2], op == ReduceOp::max && !alone ? 1.0F : -infinity) << name(op);
    }
  });
}

}  // namespace caravan::testing::reductions_test
