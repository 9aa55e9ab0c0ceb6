#include "caravan/comm/algorithms/collectives.h"

#include <array>
#include <gmock/gmock.h>
#include <limits>
#include <numeric>
#include <string>
#include <thread>

#include "caravan/base/error.h"
#include "caravan/comm/operations.h"
#include "tests/comm/reference.h"
#include "tests/comm/suites.h"

namespace caravan::testing::collectives_test {
namespace {

using algorithms::Algorithm;
using algorithms::algorithms_for;
using algorithms::Choice;
using algorithms::SelectionTable;
using ::testing::HasSubstr;

Choice choice_of(Algorithm algorithm) { return {algorithm, algorithm == Algorithm::chain ? 512 : 0}; }

std::shared_ptr<const SelectionTable> table_of(Verb verb, const Choice& choice) {
  return std::make_shared<SelectionTable>(
      SelectionTable().with({{"", verb, algorithms::Rule::kAnyRanks, algorithms::Rule::kAnyBytes, choice}}));
}

std::string text(Algorithm algorithm, Verb verb, Dtype dtype, ReduceOp op, int64_t count) {
  return std::string(algorithms::name(algorithm)) + " " + std::string(name(verb)) + " " + std::string(name(op)) + " " +
         std::string(name(dtype)) + " " + std::to_string(count);
}

/// Runs an operation with a choice: over sends and recvs, or, if the back-end builds its collectives on messages,
/// through the communicator's verb with a table that makes this choice.
class Caller {
 public:
  Caller(Communicator& comm, bool by_table) : comm(comm), by_table_(by_table) {}
  ~Caller() {
    if (by_table_) comm.select(nullptr);
  }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  void run(const Operation& operation, const Choice& choice) {
    if (!by_table_) return algorithms::run(comm, operation, choice);
    if (operation.verb != Verb::all_to_all) comm.select(table_of(operation.verb, choice));
    comm.run(operation);
  }

  Communicator& comm;  // NOLINT: public for rank and size

 private:
  bool by_table_;
};

/// An all_reduce in place.
Operation sum_of(Data& data) { return all_reduce_operation(data.buffer(), data.buffer(), ReduceOp::sum, {}); }

/// Runs `body` with every way of calling that the back-end has.
template <class Body>
void each_way(Communicator& comm, Body body) {
  for (const bool by_table : {false, true}) {
    if (by_table && !comm.select(nullptr)) continue;
    SCOPED_TRACE(by_table ? "by the table" : "over sends and recvs");
    Caller caller(comm, by_table);
    body(caller);
  }
}

void check_all_reduce(Caller& caller, Dtype dtype, ReduceOp op, int64_t count) {
  Communicator& comm = caller.comm;
  const std::vector<Data> inputs = inputs_of(comm.size(), count, dtype);
  const Data expected = reduced(inputs, op);
  for (const Algorithm algorithm : algorithms_for(Verb::all_reduce)) {
    SCOPED_TRACE(text(algorithm, Verb::all_reduce, dtype, op, count));
    const Data in = inputs[comm.rank()];
    Data out(count, dtype);
    caller.run(all_reduce_operation(in.const_buffer(), out.buffer(), op, {}), choice_of(algorithm));
    EXPECT_TRUE(out == expected);
    EXPECT_TRUE(in == inputs[comm.rank()]) << "in was written";
    Data both = in;
    caller.run(all_reduce_operation(both.buffer(), both.buffer(), op, {}), choice_of(algorithm));
    EXPECT_TRUE(both == expected) << "in place";
  }
}

void check_reduce(Caller& caller, Dtype dtype, ReduceOp op, int64_t count, int root) {
  Communicator& comm = caller.comm;
  const std::vector<Data> inputs = inputs_of(comm.size(), count, dtype, 1);
  const Data expected = reduced(inputs, op);
  for (const Algorithm algorithm : algorithms_for(Verb::reduce)) {
    SCOPED_TRACE(text(algorithm, Verb::reduce, dtype, op, count) + " root " + std::to_string(root));
    const bool is_root = comm.rank() == root;
    const Data in = inputs[comm.rank()];
    Data out(count, dtype);
    const Data untouched = out;
    caller.run(reduce_operation(in.const_buffer(), is_root ? out.buffer() : Buffer{}, op, root, {}),
               choice_of(algorithm));
    EXPECT_TRUE(out == (is_root ? expected : untouched));
    EXPECT_TRUE(in == inputs[comm.rank()]) << "in was written";
    Data both = in;
    caller.run(reduce_operation(both.buffer(), is_root ? both.buffer() : Buffer{}, op, root, {}), choice_of(algorithm));
    EXPECT_TRUE(both == (is_root ? expected : in)) << "in place";
  }
}

int64_t begin_of(const Communicator& comm, const std::vector<int64_t>& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + (rank < 0 ? comm.size() : rank), int64_t{0});
}

void check_reduce_scatter(Caller& caller, Dtype dtype, ReduceOp op, const std::vector<int64_t>& counts) {
  Communicator& comm = caller.comm;
  const int64_t total = begin_of(comm, counts, -1);
  const int64_t begin = begin_of(comm, counts, comm.rank());
  const int64_t own = counts[comm.rank()];
  const std::vector<Data> inputs = inputs_of(comm.size(), total, dtype, 2);
  const Data expected = reduced(inputs, op).copy_of_part(begin, own);
  for (const Algorithm algorithm : algorithms_for(Verb::reduce_scatter)) {
    SCOPED_TRACE(text(algorithm, Verb::reduce_scatter, dtype, op, total));
    const Data in = inputs[comm.rank()];
    Data out(own, dtype);
    caller.run(reduce_scatter_operation(in.const_buffer(), out.buffer(), op, counts, comm.size(), {}),
               choice_of(algorithm));
    EXPECT_TRUE(out == expected);
    EXPECT_TRUE(in == inputs[comm.rank()]) << "in was written";
    Data both = in;
    caller.run(reduce_scatter_operation(both.buffer(), both.part(begin, own), op, counts, comm.size(), {}),
               choice_of(algorithm));
    EXPECT_TRUE(both.copy_of_part(begin, own) == expected) << "in place";
  }
}

void check_all_gather(Caller& caller, Dtype dtype, const std::vector<int64_t>& counts) {
  Communicator& comm = caller.comm;
  const int64_t begin = begin_of(comm, counts, comm.rank());
  Data expected(0, dtype);
  for (int rank = 0; rank < comm.size(); ++rank) expected.append(input_of(rank, counts[rank], dtype, 3));
  for (const Algorithm algorithm : algorithms_for(Verb::all_gather)) {
    SCOPED_TRACE(text(algorithm, Verb::all_gather, dtype, ReduceOp::sum, expected.count()));
    const Data in = input_of(comm.rank(), counts[comm.rank()], dtype, 3);
    Data out(expected.count(), dtype);
    caller.run(all_gather_operation(in.const_buffer(), out.buffer(), counts, comm.size(), {}), choice_of(algorithm));
    EXPECT_TRUE(out == expected);
    Data both(expected.count(), dtype);
    const Buffer own = both.part(begin, in.count());
    if (in.count() > 0) std::copy_n(in.bytes(), in.count() * size_bytes(dtype), static_cast<std::byte*>(own.data));
    caller.run(all_gather_operation(own, both.buffer(), counts, comm.size(), {}), choice_of(algorithm));
    EXPECT_TRUE(both == expected) << "in place";
  }
}

void check_broadcast(Caller& caller, Dtype dtype, int64_t count, int root) {
  Communicator& comm = caller.comm;
  for (const Algorithm algorithm : algorithms_for(Verb::broadcast)) {
    SCOPED_TRACE(text(algorithm, Verb::broadcast, dtype, ReduceOp::sum, count) + " root " + std::to_string(root));
    Data data = input_of(comm.rank(), count, dtype, 4);
    caller.run(broadcast_operation(data.buffer(), root, {}), choice_of(algorithm));
    EXPECT_TRUE(data == input_of(root, count, dtype, 4));
  }
}

void check_all_to_all(Caller& caller, int64_t scale) {
  Communicator& comm = caller.comm;
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
  caller.run(all_to_all_operation(in.const_buffer(), out.buffer(), send_counts, recv_counts, comm.size(), {}),
             {Algorithm::direct});
  EXPECT_TRUE(out == expected) << "all_to_all " << scale;
}

}  // namespace

TEST_P(Algorithms, ReductionsAreCorrectWithEveryAlgorithm) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    each_way(*world, [](Caller& caller) {
      const int n = caller.comm.size();
      for (const int64_t count : {0, 1, n - 1, 1037}) {
        for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16, Dtype::int64}) {
          check_all_reduce(caller, dtype, ReduceOp::sum, count);
          check_reduce(caller, dtype, ReduceOp::sum, count, static_cast<int>(count) % n);
          check_reduce_scatter(caller, dtype, ReduceOp::sum, std::vector<int64_t>(n, count));
        }
        check_all_reduce(caller, Dtype::int32, ReduceOp::max, count);
        check_reduce(caller, Dtype::bf16, ReduceOp::min, count, n - 1);
        check_reduce_scatter(caller, Dtype::boolean, ReduceOp::max, std::vector<int64_t>(n, count));
      }
      check_reduce_scatter(caller, Dtype::bf16, ReduceOp::sum, uneven_counts(n, 100));
    });
  });
}

TEST_P(Algorithms, MovesAreCorrectWithEveryAlgorithm) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    each_way(*world, [](Caller& caller) {
      const int n = caller.comm.size();
      for (const int64_t count : {0, 1, 1037}) {
        check_all_gather(caller, Dtype::uint8, std::vector<int64_t>(n, count));
        check_broadcast(caller, Dtype::fp16, count, static_cast<int>(count) % n);
        check_all_to_all(caller, count);
      }
      check_all_gather(caller, Dtype::fp64, uneven_counts(n, 50));
      check_broadcast(caller, Dtype::fp64, 3000, n - 1);
    });
  });
}

TEST_P(Algorithms, LargeVectors) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    each_way(*world, [](Caller& caller) {
      check_all_reduce(caller, Dtype::fp32, ReduceOp::sum, 300'001);
      check_all_reduce(caller, Dtype::bf16, ReduceOp::sum, 300'001);
      check_broadcast(caller, Dtype::fp32, 200'003, 0);
    });
  });
}

/// Sums that depend on their order: every rank must use the same order, every time.
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
        algorithms::run(*world, sum_of(data), choice_of(algorithm));
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
    algorithms::run(*world, sum_of(data), {Algorithm::direct});
    EXPECT_TRUE(data == expected);
  });
}

/// Where the ranks compare their calls, tables that differ are named.
TEST_P(Algorithms, TablesThatDifferAreNamed) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    if (world->size() == 1 || !world->select(nullptr)) return;
    const Algorithm own = world->rank() == 0 ? Algorithm::ring : Algorithm::rabenseifner;
    world->select(table_of(Verb::all_reduce, {own}));
    Data data(10, Dtype::fp32);
    const std::string error =
        error_of<CommError>([&] { world->all_reduce(data.buffer(), data.buffer(), ReduceOp::sum); });
    EXPECT_THAT(error, HasSubstr("by ring"));
    EXPECT_THAT(error, HasSubstr("by rabenseifner"));
  });
}

TEST_P(Algorithms, AsynchronousOnesProgressWhenPolled) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const std::vector<Data> inputs = inputs_of(world->size(), 5000, Dtype::fp32);
    for (const Algorithm algorithm : algorithms_for(Verb::all_reduce)) {
      SCOPED_TRACE(algorithms::name(algorithm));
      Data data = inputs[world->rank()];
      auto pending = algorithms::issue(*world, sum_of(data), choice_of(algorithm));
      while (!pending.done()) std::this_thread::yield();
      pending.wait();
      EXPECT_TRUE(data == reduced(inputs, ReduceOp::sum));
      Data dropped = inputs[world->rank()];
      algorithms::issue(*world, sum_of(dropped), choice_of(algorithm));
      EXPECT_TRUE(dropped == data) << "a handle that is dropped waits";
    }
  });
}

TEST_P(Algorithms, RefuseWhatTheVerbsRefuse) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    Data data(10, Dtype::fp32);
    const auto error = [](const auto& call) { return error_of<UsageError>(call); };
    EXPECT_THAT(error([&] {
                  algorithms::run(*world, sum_of(data), {Algorithm::chain, 64});
                }),
                HasSubstr("choose from direct, ring, recursive_doubling, rabenseifner"));
    EXPECT_THAT(
        error([&] { algorithms::run(*world, broadcast_operation(data.buffer(), 99, {}), {Algorithm::binomial}); }),
        HasSubstr("no rank 99 to be the root"));
    EXPECT_THAT(error([&] { algorithms::run(*world, broadcast_operation(data.buffer(), 0, {}), {Algorithm::chain}); }),
                HasSubstr("segments"));
    Data same = data;
    algorithms::run(*world, sum_of(same), {Algorithm::ring});  // still alive
  });
}

}  // namespace caravan::testing::collectives_test
