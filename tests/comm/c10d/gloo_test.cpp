// Compares every method of the back-end with that of c10d's gloo, on the same tensors.
#include <algorithm>
#include <mutex>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "tests/comm/c10d/group.h"
#include "tests/ranks/rank_case.h"

namespace caravan::testing::gloo_test {
namespace {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using c10d::ReduceOp;

constexpr at::ScalarType kGlooDtypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong,
                                          at::kInt,   at::kChar,   at::kByte, at::kBool};
constexpr ReduceOp::RedOpType kOps[] = {ReduceOp::SUM,  ReduceOp::PRODUCT, ReduceOp::MIN,  ReduceOp::MAX,
                                        ReduceOp::BAND, ReduceOp::BOR,     ReduceOp::BXOR, ReduceOp::AVG};

Group gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(30));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  auto group = c10::make_intrusive<c10d::ProcessGroup>(rank, size);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                    c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, std::move(options)));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

/// Both groups of one rank.
struct Both {
  Group gloo;
  Group ours;
  int rank = 0;
  int size = 1;

  /// `call(group)` gives tensors; ours must be gloo's. False if gloo refuses the call.
  template <class Call>
  bool compare(const std::string& what, const Call& call) const {
    Tensors expected;
    try {
      expected = call(gloo);
    } catch (const std::exception&) {
      return false;
    }
    Tensors actual;
    try {
      actual = call(ours);
    } catch (const std::exception& error) {
      ADD_FAILURE() << what << ": gloo does it, ours: " << error.what();
      return true;
    }
    EXPECT_EQ(actual.size(), expected.size()) << what;
    for (size_t i = 0; i < std::min(actual.size(), expected.size()); ++i) {
      EXPECT_EQ(actual[i].scalar_type(), expected[i].scalar_type()) << what;
      EXPECT_TRUE(at::equal(plain(actual[i]), plain(expected[i])))
          << what << ", tensor " << i << ": gloo " << expected[i] << ", ours " << actual[i];
    }
    return true;
  }

  /// gloo's sum of bools gives 2 for a true.
  static at::Tensor plain(const at::Tensor& tensor) {
    const at::Tensor dense = tensor.is_sparse() ? tensor.to_dense() : tensor;
    return dense.scalar_type() == at::kBool ? dense.contiguous().view(at::kByte).ne(0) : dense;
  }
};

using Body = std::function<void(const Both&)>;

class BesideGloo : public ::testing::TestWithParam<int> {
 protected:
  static void run(const Body& body) {
    const int size = GetParam();
    const auto store = c10::make_intrusive<c10d::HashStore>();
    run_thread_ranks(size,
                     [&](const std::shared_ptr<Communicator>& world) {
                       body({gloo_group(store, world->rank(), size), make_group(world), world->rank(), size});
                     },
                     {.timeout = std::chrono::seconds(30)});
  }
};

/// 1 to 4, differing by rank and place; exact in every dtype, as is a product of three.
at::Tensor numbers(int64_t rank, int64_t count, at::ScalarType type) {
  return ((at::arange(count, at::kLong) + rank) % 4 + 1).to(type);
}

template <class Options>
Options with_op(ReduceOp::RedOpType op) {
  Options options;
  options.reduceOp = op;
  return options;
}

void compare_reductions(const Both& both, at::ScalarType type, ReduceOp::RedOpType op, int& num_done) {
  const int64_t n = both.size;
  const std::string what = std::string(c10::toString(type)) + " op " + std::to_string(op);
  const auto input = [&](int64_t count = 12) { return numbers(both.rank, count, type); };
  const auto done = [&](const std::string& method, const auto& call) {
    if (both.compare(method + " " + what, call)) ++num_done;
  };
  done("allreduce", [&](const Group& group) {
    Tensors tensors{input()};
    group->allreduce(tensors, with_op<c10d::AllreduceOptions>(op))->wait();
    return tensors;
  });
  done("allreduce_coalesced", [&](const Group& group) {
    Tensors tensors{input(3), input(), input(1).view({})};
    group->allreduce_coalesced(tensors, with_op<c10d::AllreduceCoalescedOptions>(op))->wait();
    return tensors;
  });
  done("reduce", [&](const Group& group) {
    Tensors tensors{input()};
    auto options = with_op<c10d::ReduceOptions>(op);
    options.rootRank = n - 1;
    group->reduce(tensors, options)->wait();
    return both.rank == n - 1 ? tensors : Tensors();
  });
  const auto scatter = with_op<c10d::ReduceScatterOptions>(op);
  done("reduce_scatter", [&](const Group& group) {
    Tensors outputs{at::empty({both.rank + 1}, type)};
    TensorLists inputs(1);
    for (int64_t to = 0; to < n; ++to) inputs[0].push_back(input(to + 1));
    group->reduce_scatter(outputs, inputs, scatter)->wait();
    return outputs;
  });
  done("_reduce_scatter_base", [&](const Group& group) {
    at::Tensor output = at::empty({5}, type);
    at::Tensor in = input(5 * n);
    group->_reduce_scatter_base(output, in, scatter)->wait();
    return Tensors{output};
  });
  done("reduce_scatter_tensor_coalesced", [&](const Group& group) {
    Tensors outputs{at::empty({5}, type), at::empty({1}, type)};
    Tensors inputs{input(5 * n), input(n)};
    group->reduce_scatter_tensor_coalesced(outputs, inputs, scatter)->wait();
    return outputs;
  });
}

TEST_P(BesideGloo, Reduces) {
  run([](const Both& both) {
    int num_done = 0;
    for (const at::ScalarType type : kGlooDtypes) {
      for (const ReduceOp::RedOpType op : kOps) compare_reductions(both, type, op, num_done);
    }
    // Which operations gloo takes for which dtype varies with its version. All 6 methods take most of the 9 x 8.
    EXPECT_GT(num_done, 9 * 4 * 6) << "gloo has refused what this test is about";
  });
}

void compare_movement(const Both& both, at::ScalarType type) {
  const int64_t n = both.size;
  const int64_t rank = both.rank;
  const auto input = [&](int64_t count = 6) { return numbers(rank, count, type); };
  const auto empty = [&](int64_t count) { return at::zeros({count}, type); };
  const auto list = [&] {
    Tensors tensors;
    for (int64_t i = 0; i < n; ++i) tensors.push_back(empty(6));
    return tensors;
  };
  const auto done = [&](const char* method, const auto& call) {
    EXPECT_TRUE(both.compare(std::string(method) + " " + c10::toString(type), call)) << "gloo refuses " << method;
  };
  done("broadcast", [&](const Group& group) {
    Tensors tensors{input()};
    c10d::BroadcastOptions options;
    options.rootRank = n - 1;
    group->broadcast(tensors, options)->wait();
    return tensors;
  });
  done("allgather", [&](const Group& group) {
    Tensors inputs{input()};
    TensorLists outputs{list()};
    group->allgather(outputs, inputs)->wait();
    return outputs[0];
  });
  done("_allgather_base", [&](const Group& group) {
    at::Tensor output = empty(6 * n);
    at::Tensor in = input();
    group->_allgather_base(output, in)->wait();
    return Tensors{output};
  });
  done("allgather_into_tensor_coalesced", [&](const Group& group) {
    Tensors outputs{empty(6 * n), empty(n)};
    Tensors inputs{input(), input(1)};
    group->allgather_into_tensor_coalesced(outputs, inputs)->wait();
    return outputs;
  });
  done("gather", [&](const Group& group) {
    Tensors inputs{input()};
    TensorLists outputs;
    if (rank == n - 1) outputs.push_back(list());
    c10d::GatherOptions options;
    options.rootRank = n - 1;
    group->gather(outputs, inputs, options)->wait();
    return outputs.empty() ? Tensors() : outputs[0];
  });
  done("scatter", [&](const Group& group) {
    Tensors outputs{empty(6)};
    TensorLists inputs;
    if (rank == n - 1) inputs.push_back(numbers(7, 6 * n, type).chunk(n));
    c10d::ScatterOptions options;
    options.rootRank = n - 1;
    group->scatter(outputs, inputs, options)->wait();
    return outputs;
  });
  done("alltoall", [&](const Group& group) {
    Tensors outputs{list()};
    Tensors inputs;
    for (int64_t to = 0; to < n; ++to) inputs.push_back(numbers(rank + 3 * to, 6, type));
    group->alltoall(outputs, inputs)->wait();
    return outputs;
  });
  done("alltoall_base", [&](const Group& group) {
    std::vector<int64_t> rows;
    for (int64_t peer = 0; peer < n; ++peer) rows.push_back(rank + peer + 1);
    int64_t total = 0;
    for (const int64_t each : rows) total += each;
    at::Tensor in = input(2 * total).view({total, 2});
    at::Tensor out = at::zeros_like(in);
    group->alltoall_base(out, in, rows, rows)->wait();
    return Tensors{out};
  });
}

TEST_P(BesideGloo, Moves) {
  run([](const Both& both) {
    for (const at::ScalarType type : kGlooDtypes) compare_movement(both, type);
  });
}

/// Rank r's list of outputs has two tensors from each rank.
TEST_P(BesideGloo, GathersListsTogether) {
  run([](const Both& both) {
    const auto call = [&](const Group& group) {
      Tensors inputs{numbers(both.rank, 4, at::kFloat).view({2, 2}), numbers(both.rank + 1, 3, at::kFloat)};
      TensorLists outputs;
      for (int rank = 0; rank < both.size; ++rank) outputs.push_back({at::zeros({2, 2}), at::zeros({3})});
      group->getBackend(c10::DeviceType::CPU)->allgather_coalesced(outputs, inputs)->wait();
      return outputs;
    };
    const TensorLists ours = call(both.ours);
    for (int rank = 0; rank < both.size; ++rank) {
      EXPECT_TRUE(at::equal(ours[rank][0], numbers(rank, 4, at::kFloat).view({2, 2})));
      EXPECT_TRUE(at::equal(ours[rank][1], numbers(rank + 1, 3, at::kFloat)));
    }
    // With lists of one tensor: gloo 2.13 mixes up longer ones.
    EXPECT_TRUE(both.compare("allgather_coalesced", [&](const Group& group) {
      Tensors inputs{numbers(both.rank, 4, at::kFloat)};
      TensorLists outputs(static_cast<size_t>(both.size), {at::zeros({4})});
      for (Tensors& list : outputs) list[0] = at::zeros({4});
      group->getBackend(c10::DeviceType::CPU)->allgather_coalesced(outputs, inputs)->wait();
      Tensors all;
      for (const Tensors& list : outputs) all.push_back(list[0]);
      return all;
    }));
  });
}

/// Transposed, and every second column of a wider tensor; nothing between the columns may change.
TEST_P(BesideGloo, TakesTensorsThatAreNotContiguous) {
  run([](const Both& both) {
    const int64_t n = both.size;
    const auto turned = [&](int64_t from) { return numbers(from, 12, at::kFloat).view({3, 4}).t(); };
    const auto spaced = [&](int64_t from) { return numbers(from, 24, at::kFloat).view({4, 6}).slice(1, 0, 6, 2); };
    for (const bool is_spaced : {false, true}) {
      const auto make = [&](int64_t from) { return is_spaced ? spaced(from) : turned(from); };
      const std::string what = is_spaced ? " spaced" : " transposed";
      const auto sum = [&] {
        at::Tensor total = make(0).clone();
        for (int64_t rank = 1; rank < n; ++rank) total += make(rank);
        return total;
      }();
      Tensors one{make(both.rank)};
      both.ours->allreduce(one)->wait();
      EXPECT_TRUE(at::equal(one[0], sum)) << "allreduce" << what;
      c10d::AllreduceOptions product;
      product.reduceOp = ReduceOp::PRODUCT;
      one = {make(both.rank)};
      both.ours->allreduce(one, product)->wait();
      at::Tensor expected = make(0).clone();
      for (int64_t rank = 1; rank < n; ++rank) expected *= make(rank);
      EXPECT_TRUE(at::equal(one[0], expected)) << "product" << what;
      one = {make(both.rank)};
      both.ours->broadcast(one)->wait();
      EXPECT_TRUE(at::equal(one[0], make(0))) << "broadcast" << what;
      one = {make(both.rank)};
      both.ours->reduce(one)->wait();
      EXPECT_TRUE(at::equal(one[0], both.rank == 0 ? sum : make(both.rank))) << "reduce" << what;
      Tensors inputs{make(both.rank)};
      TensorLists outputs(1);
      for (int64_t rank = 0; rank < n; ++rank) outputs[0].push_back(make(9));
      both.ours->allgather(outputs, inputs)->wait();
      for (int64_t rank = 0; rank < n; ++rank) EXPECT_TRUE(at::equal(outputs[0][rank], make(rank))) << "out" << what;
      Tensors output{make(9)};
      TensorLists lists(1);
      for (int64_t rank = 0; rank < n; ++rank) lists[0].push_back(make(both.rank));
      both.ours->reduce_scatter(output, lists)->wait();
      EXPECT_TRUE(at::equal(output[0], sum)) << "reduce_scatter" << what;
    }
    at::Tensor wide = numbers(both.rank, 24, at::kFloat).view({4, 6});
    const at::Tensor between = wide.slice(1, 1, 6, 2).clone();
    Tensors columns{wide.slice(1, 0, 6, 2)};
    both.ours->allreduce(columns)->wait();
    EXPECT_TRUE(at::equal(wide.slice(1, 1, 6, 2), between));
  });
}

/// Rank r has r + 1 rows, or none, some of them in common with others.
TEST_P(BesideGloo, SumsSparseTensors) {
  run([](const Both& both) {
    for (const at::ScalarType type : {at::kFloat, at::kLong, at::kDouble}) {  // gloo adds no others
      for (const int64_t entries : {both.rank + 1, both.rank}) {
        EXPECT_TRUE(both.compare("sparse", [&](const Group& group) {
          const at::Tensor indices = (at::arange(2 * entries, at::kLong) % 3).view({2, entries});
          const at::Tensor values = numbers(both.rank, 2 * entries, type).view({entries, 2});
          Tensors tensors{at::sparse_coo_tensor(indices, values, {3, 4, 2})};
          group->allreduce(tensors)->wait();
          EXPECT_TRUE(tensors[0].is_coalesced());
          return tensors;
        }));
      }
    }
    Tensors other{at::sparse_coo_tensor(at::zeros({1, 1}, at::kLong), at::ones({1}), {both.rank == 0 ? 3 : 4})};
    EXPECT_THAT(error_of<CommError>([&] { both.ours->allreduce(other); }),
                ::testing::AllOf(::testing::HasSubstr("Float [3]"), ::testing::HasSubstr("Float [4]")));
    both.ours->barrier()->wait();
    c10d::AllreduceOptions max;
    max.reduceOp = ReduceOp::MAX;
    EXPECT_THAT(error_of<UsageError>([&] { both.ours->allreduce(other, max); }), ::testing::HasSubstr("only summed"));
  });
}

/// The last rank receives from the first by tag, in another order than the sends.
TEST_P(BesideGloo, MatchesMessagesByTag) {
  run([](const Both& both) {
    for (const int64_t count : {int64_t{3}, int64_t{300'000}}) {
      EXPECT_TRUE(both.compare("tags", [&](const Group& group) {
        Tensors a{at::full({count}, 1)};
        Tensors b{at::full({count}, 2)};
        Tensors c{at::full({count}, 3)};
        if (both.rank == 0) {
          const auto first = group->send(a, both.size - 1, 5);
          const auto second = group->send(b, both.size - 1, 6);
          const auto third = group->send(c, both.size - 1, 5);
          for (const auto& work : {first, second, third}) work->wait();
        } else if (both.rank == both.size - 1) {
          Tensors x{at::zeros({count}, at::kLong)};
          Tensors y{at::zeros({count}, at::kLong)};
          Tensors z{at::zeros({count}, at::kLong)};
          const auto work = group->recv(z, 0, 6);
          work->wait();
          EXPECT_EQ(work->sourceRank(), 0);
          group->recv(x, 0, 5)->wait();
          group->recv(y, 0, 5)->wait();
          return Tensors{x[0], y[0], z[0]};
        }
        return Tensors();
      }));
    }
  });
}

/// Everybody sends to the last rank, which receives from any: two messages of each rank, in the order it sent them.
TEST_P(BesideGloo, ReceivesFromAnySource) {
  run([](const Both& both) {
    EXPECT_TRUE(both.compare("any source", [&](const Group& group) {
      const int last = both.size - 1;
      if (both.rank != last) {
        for (const int number : {1, 2}) {
          Tensors message{at::full({4}, 10 * both.rank + number)};
          group->send(message, last, 3)->wait();
        }
        return Tensors();
      }
      std::vector<Tensors> of_rank(static_cast<size_t>(both.size));
      for (int i = 0; i < 2 * last; ++i) {
        Tensors buffer{at::zeros({4}, at::kLong)};
        const auto work = group->recvAnysource(buffer, 3);
        work->wait();
        of_rank[static_cast<size_t>(work->sourceRank())].push_back(buffer[0]);
      }
      Tensors all;
      for (const Tensors& list : of_rank) all.insert(all.end(), list.begin(), list.end());
      return all;
    }));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, BesideGloo, ::testing::Values(2, 3));

}  // namespace
}  // namespace caravan::testing::gloo_test
