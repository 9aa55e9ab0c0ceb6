#include "caravan/comm/algorithms/collectives.h"

#include <array>
#include <gmock/gmock.h>
#include <limits>
#include <numeric>
#include <string>
#include <thread>

#include "caravan/base/error.h"
#include "tests/comm/reference.h"
#include "tests/comm/suites.h"

namespace caravan::testing {
namespace {

using algorithms::Algorithm;
using algorithms::algorithms_for;
using algorithms::Choice;
using ::testing::HasSubstr;

Choice choice_of(Algorithm algorithm) { return {algorithm, algorithm == Algorithm::chain ? 512 : 0}; }

std::string text(Algorithm algorithm, Verb verb, Dtype dtype, ReduceOp op, int64_t count) {
  return std::string(algorithms::name(algorithm)) + " " + std::string(name(verb)) + " " + std::string(name(op)) + " " +
         std::string(name(dtype)) + " " + std::to_string(count);
}

void check_all_reduce(Communicator& comm, Dtype dtype, ReduceOp op, int64_t count) {
  const std::vector<Data> inputs = inputs_of(comm.size(), count, dtype);
  const Data expected = reduced(inputs, op);
  for (const Algorithm algorithm : algorithms_for(Verb::all_reduce)) {
    SCOPED_TRACE(text(algorithm, Verb::all_reduce, dtype, op, count));
    const Data in = inputs[comm.rank()];
    Data out(count, dtype);
    algorithms::all_reduce(comm, in.const_buffer(), out.buffer(), op, choice_of(algorithm));
    EXPECT_TRUE(out == expected);
    EXPECT_TRUE(in == inputs[comm.rank()]) << "in was written";
    Data both = in;
    algorithms::all_reduce(comm, both.buffer(), both.buffer(), op, choice_of(algorithm), "in place");
    EXPECT_TRUE(both == expected) << "in place";
  }
}

void check_reduce(Communicator& comm, Dtype dtype, ReduceOp op, int64_t count, int root) {
  const std::vector<Data> inputs = inputs_of(comm.size(), count, dtype, 1);
  const Data expected = reduced(inputs, op);
  for (const Algorithm algorithm : algorithms_for(Verb::reduce)) {
    SCOPED_TRACE(text(algorithm, Verb::reduce, dtype, op, count) + " root " + std::to_string(root));
    const bool is_root = comm.rank() == root;
    const Data in = inputs[comm.rank()];
    Data out(count, dtype);
    const Data untouched = out;
    algorithms::reduce(comm, in.const_buffer(), out.buffer(), op, root, choice_of(algorithm));
    EXPECT_TRUE(out == (is_root ? expected : untouched));
    EXPECT_TRUE(in == inputs[comm.rank()]) << "in was written";
    Data both = in;
    algorithms::reduce(comm, both.buffer(), is_root ? both.buffer() : Buffer{}, op, root, choice_of(algorithm));
    EXPECT_TRUE(both == (is_root ? expected : in)) << "in place";
  }
}

int64_t begin_of(const Communicator& comm, const std::vector<int64_t>& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + (rank < 0 ? comm.size() : rank), int64_t{0});
}

void check_reduce_scatter(Communicator& comm, Dtype dtype, ReduceOp op, const std::vector<int64_t>& counts) {
  const int64_t total = begin_of(comm, counts, -1);
  const int64_t begin = begin_of(comm, counts, comm.rank());
  const int64_t own = counts[comm.rank()];
  const std::vector<Data> inputs = inputs_of(comm.size(), total, dtype, 2);
  const Data expected = reduced(inputs, op).copy_of_part(begin, own);
  for (const Algorithm algorithm : algorithms_for(Verb::reduce_scatter)) {
    SCOPED_TRACE(text(algorithm, Verb::reduce_scatter, dtype, op, total));
    const Data in = inputs[comm.rank()];
    Data out(own, dtype);
    algorithms::reduce_scatter(comm, in.const_buffer(), out.buffer(), op, counts, choice_of(algorithm));
    EXPECT_TRUE(out == expected);
    EXPECT_TRUE(in == inputs[comm.rank()]) << "in was written";
    Data both = in;
    algorithms::reduce_scatter(comm, both.buffer(), both.part(begin, own), op, counts, choice_of(algorithm));
    EXPECT_TRUE(both.copy_of_part(begin, own) == expected) << "in place";
  }
}

void check_all_gather(Communicator& comm, Dtype dtype, const std::vector<int64_t>& counts) {
  const int64_t begin = begin_of(comm, counts, comm.rank());
  Data expected(0, dtype);
  for (int rank = 0; rank < comm.size(); ++rank) expected.append(input_of(rank, counts[rank], dtype, 3));
  for (const Algorithm algorithm : algorithms_for(Verb::all_gather)) {
    SCOPED_TRACE(text(algorithm, Verb::all_gather, dtype, ReduceOp::sum, expected.count()));
    const Data in = input_of(comm.rank(), counts[comm.rank()], dtype, 3);
    Data out(expected.count(), dtype);
    algorithms::all_gather(comm, in.const_buffer(), out.buffer(), counts, choice_of(algorithm));
    EXPECT_TRUE(out == expected);
    Data both(expected.count(), dtype);
    const Buffer own = both.part(begin, in.count());
    if (in.count() > 0) std::copy_n(in.bytes(), in.count() * size_bytes(dtype), static_cast<std::byte*>(own.data));
    algorithms::all_gather(comm, own, both.buffer(), counts, choice_of(algorithm), "in place");
    EXPECT_TRUE(both == expected) << "in place";
  }
}

void check_broadcast(Communicator& comm, Dtype dtype, int64_t count, int root) {
  for (const Algorithm algorithm : algorithms_for(Verb::broadcast)) {
    SCOPED_TRACE(text(algorithm, Verb::broadcast, dtype, ReduceOp::sum, count) + " root " + std::to_string(root));
    Data data = input_of(comm.rank(), count, dtype, 4);
    algorithms::broadcast(comm, data.buffer(), root, choice_of(algorithm));
    EXPECT_TRUE(data == input_of(root, count, dtype, 4));
  }
}

void check_all_to_all(Communicator& comm, int64_t scale) {
  const auto sent = [&](int from, int to) { return (from * 3 + to * 2 + 1) % 4 * scale; };
  std::vector<int64_t> send_counts;
  std::vector<int64_t> recv_counts;
  Data in(0, Dtype::int32);
  Data expected(0, Dtype::int32);
  for (int peer = 0; peer < comm.size(); ++peer) {
    send_counts.push_back(sent(comm.rank(), peer));
    recv_counts.push_back(sent(peer, comm.rank()));
    in.append(input_of(comm.rank(), send_counts.back(), Dtype::int32, peer));
    expected.append(input_of(peer, recv_counts.back(), Dtype::int32, comm.rank()));
  }
  Data out(expected.count(), Dtype::int32);
  algorithms::all_to_all(comm, in.const_buffer(), out.buffer(), send_counts, recv_counts, {Algorithm::direct});
  EXPECT_TRUE(out == expected) << "all_to_all " << scale;
}

}  // namespace

TEST_P(Algorithms, ReductionsAreRightWithEveryAlgorithm) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const int n = world->size();
    for (const int64_t count : {0, 1, n - 1, 1037}) {
      for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16, Dtype::int64}) {
        check_all_reduce(*world, dtype, ReduceOp::sum, count);
        check_reduce(*world, dtype, ReduceOp::sum, count, static_cast<int>(count) % n);
        check_reduce_scatter(*world, dtype, ReduceOp::sum, std::vector<int64_t>(n, count));
      }
      check_all_reduce(*world, Dtype::int32, ReduceOp::max, count);
      check_reduce(*world, Dtype::bf16, ReduceOp::min, count, n - 1);
      check_reduce_scatter(*world, Dtype::boolean, ReduceOp::max, std::vector<int64_t>(n, count));
    }
    check_reduce_scatter(*world, Dtype::bf16, ReduceOp::sum, uneven_counts(n, 100));
  });
}

TEST_P(Algorithms, MovesAreRightWithEveryAlgorithm) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const int n = world->size();
    for (const int64_t count : {0, 1, 1037}) {
      check_all_gather(*world, Dtype::uint8, std::vector<int64_t>(n, count));
      check_broadcast(*world, Dtype::fp16, count, static_cast<int>(count) % n);
      check_all_to_all(*world, count);
    }
    check_all_gather(*world, Dtype::fp64, uneven_counts(n, 50));
    check_broadcast(*world, Dtype::fp64, 3000, n - 1);
  });
}

TEST_P(Algorithms, LargeVectors) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    check_all_reduce(*world, Dtype::fp32, ReduceOp::sum, 300'001);
    check_all_reduce(*world, Dtype::bf16, ReduceOp::sum, 300'001);
    check_broadcast(*world, Dtype::fp32, 200'003, 0);
  });
}

/// Sums that depend on their order: every rank must take the same one, each time.
TEST_P(Algorithms, EveryRankHasTheSameBitsEveryTime) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    constexpr int64_t kCount = 1000;
    const std::array<float, 4> terms{1e8F, 1.0F, -1e8F, std::numeric_limits<float>::quiet_NaN()};
    for (const Algorithm algorithm : algorithms_for(Verb::all_reduce)) {
      SCOPED_TRACE(algorithms::name(algorithm));
      Data first;
      for (int turn = 0; turn < 3; ++turn) {
        Data data(kCount, Dtype::fp32);
        auto* values = reinterpret_cast<float*>(data.bytes());
        for (int64_t i = 0; i < kCount; ++i) values[i] = terms[(world->rank() + i) % (i < 900 ? 3 : 4)] * (1 + i);
        algorithms::all_reduce(*world, data.buffer(), data.buffer(), ReduceOp::sum, choice_of(algorithm));
        if (turn == 0) first = data;
        EXPECT_TRUE(data == first) << "turn " << turn;
        Data others(kCount * world->size(), Dtype::fp32);
        world->all_gather(data.const_buffer(), others.buffer());
        for (int rank = 0; rank < world->size(); ++rank) {
          EXPECT_TRUE(others.copy_of_part(rank * kCount, kCount) == data) << "rank " << rank;
        }
      }
    }
  });
}

TEST_P(Algorithms, DirectTakesSumsInRankOrder) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    Data expected(1000, Dtype::fp32);
    auto* values = reinterpret_cast<float*>(expected.bytes());
    for (int64_t i = 0; i < 1000; ++i) values[i] = std::array{1e8F, 1.0F, -1e8F, 3.0F}[(world->rank() + i) % 4];
    Data data = expected;
    world->all_reduce(expected.buffer(), expected.buffer(), ReduceOp::sum);
    algorithms::all_reduce(*world, data.buffer(), data.buffer(), ReduceOp::sum, {Algorithm::direct});
    EXPECT_TRUE(data == expected);
  });
}

TEST_P(Algorithms, AsynchronousOnesGoOnWhenAsked) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const std::vector<Data> inputs = inputs_of(world->size(), 5000, Dtype::fp32);
    for (const Algorithm algorithm : algorithms_for(Verb::all_reduce)) {
      SCOPED_TRACE(algorithms::name(algorithm));
      Data data = inputs[world->rank()];
      auto pending =
          algorithms::all_reduce_async(*world, data.buffer(), data.buffer(), ReduceOp::sum, choice_of(algorithm));
      while (!pending.done()) std::this_thread::yield();
      pending.wait();
      EXPECT_TRUE(data == reduced(inputs, ReduceOp::sum));
      Data dropped = inputs[world->rank()];
      algorithms::all_reduce_async(*world, dropped.buffer(), dropped.buffer(), ReduceOp::sum, choice_of(algorithm));
      EXPECT_TRUE(dropped == data) << "a handle that is dropped waits";
    }
  });
}

TEST_P(Algorithms, RefuseWhatTheVerbsRefuse) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    Data data(10, Dtype::fp32);
    const auto error = [](const auto& call) { return error_of<UsageError>(call); };
    EXPECT_THAT(error([&] {
                  algorithms::all_reduce(*world, data.buffer(), data.buffer(), ReduceOp::sum, {Algorithm::chain, 64});
                }),
                HasSubstr("choose from direct, ring, recursive_doubling, rabenseifner"));
    EXPECT_THAT(error([&] { algorithms::broadcast(*world, data.buffer(), 99, {Algorithm::binomial}); }),
                HasSubstr("no rank 99 to be the root"));
    EXPECT_THAT(error([&] { algorithms::broadcast(*world, data.buffer(), 0, {Algorithm::chain}); }),
                HasSubstr("segments"));
    Data same = data;
    algorithms::all_reduce(*world, same.buffer(), same.buffer(), ReduceOp::sum, {Algorithm::ring});  // still alive
  });
}

}  // namespace caravan::testing
