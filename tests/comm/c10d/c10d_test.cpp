#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/headeronly/version.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/comm/tensor.h"
#include "tests/comm/c10d/group.h"
#include "tests/comm/reference.h"
#include "tests/ranks/process_ranks.h"
#include "tests/ranks/rank_case.h"

namespace caravan::testing::c10d_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr int64_t kEach = 1000;

class C10d : public ::testing::TestWithParam<RankCase> {};

at::Tensor tensor_of(const Data& data) {
  return at::from_blob(const_cast<std::byte*>(data.bytes()), {data.count()}, to_scalar_type(data.dtype())).clone();
}

/// Numbers that depend on rank and position; exact in every dtype used here.
at::Tensor numbers(int64_t rank, int64_t count, at::ScalarType type = at::kFloat) {
  return (at::arange(count, at::kLong) % 7 + 10 * rank).to(type);
}

at::Tensor all_numbers(int64_t ranks, int64_t count, at::ScalarType type = at::kFloat) {
  Tensors list;
  for (int64_t rank = 0; rank < ranks; ++rank) list.push_back(numbers(rank, count, type));
  return at::cat(list);
}

bool same(const at::Tensor& a, const at::Tensor& b) { return a.scalar_type() == b.scalar_type() && at::equal(a, b); }

struct OpPair {
  ReduceOp ours;
  c10d::ReduceOp::RedOpType theirs;
};
constexpr OpPair kOpPairs[] = {
    {ReduceOp::sum, c10d::ReduceOp::SUM}, {ReduceOp::max, c10d::ReduceOp::MAX}, {ReduceOp::min, c10d::ReduceOp::MIN}};

void check_reductions(const Group& group, Dtype dtype, const OpPair& op) {
  const int n = group->getSize();
  const int rank = group->getRank();
  const std::string which = std::string(name(op.ours)) + " " + std::string(name(dtype));
  const at::Tensor expected = tensor_of(reduced(inputs_of(n, n * kEach, dtype), op.ours));
  const auto input = [&] { return tensor_of(input_of(rank, n * kEach, dtype)); };
  const at::Tensor own_part = expected.narrow(0, rank * kEach, kEach);

  c10d::AllreduceOptions all;
  all.reduceOp = op.theirs;
  Tensors tensors{input()};
  group->allreduce(tensors, all)->wait();
  EXPECT_TRUE(same(tensors[0], expected)) << "allreduce " << which;

  c10d::AllreduceCoalescedOptions coalesced;
  coalesced.reduceOp = op.theirs;
  Tensors two{input().narrow(0, 0, kEach), input()};
  group->allreduce_coalesced(two, coalesced)->wait();
  EXPECT_TRUE(same(two[0], expected.narrow(0, 0, kEach)) && same(two[1], expected)) << "coalesced " << which;

  c10d::ReduceOptions to_last;
  to_last.reduceOp = op.theirs;
  to_last.rootRank = n - 1;
  Tensors one{input()};
  group->reduce(one, to_last)->wait();
  EXPECT_TRUE(same(one[0], rank == n - 1 ? expected : input())) << "reduce " << which;

  c10d::ReduceScatterOptions scatter;
  scatter.reduceOp = op.theirs;
  at::Tensor flat = input();
  at::Tensor out = at::empty({kEach}, flat.options());
  group->_reduce_scatter_base(out, flat, scatter)->wait();
  EXPECT_TRUE(same(out, own_part)) << "_reduce_scatter_base " << which;

  Tensors outs{at::empty({kEach}, flat.options()), at::empty({1}, flat.options())};
  Tensors ins{input(), input().narrow(0, 0, n)};
  group->reduce_scatter_tensor_coalesced(outs, ins, scatter)->wait();
  EXPECT_TRUE(same(outs[0], own_part) && same(outs[1], expected.narrow(0, rank, 1))) << "coalesced " << which;
}

TEST_P(C10d, ReducesLikeTheReference) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const Group group = make_group(world);
    for (const Dtype dtype : kDtypes) {
      for (const OpPair& op : kOpPairs) {
        if (reduces(op.ours, dtype)) check_reductions(group, dtype, op);
      }
    }
  });
}

/// Uneven lists: rank r gets r + 1 elements.
TEST_P(C10d, ReduceScattersLists) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const Group group = make_group(world);
    const int64_t n = world->size();
    std::vector<Tensors> inputs(1);
    for (int64_t to = 0; to < n; ++to) inputs[0].push_back(numbers(world->rank() + 3 * to, to + 1));
    Tensors output{at::zeros({world->rank() + 1})};
    group->reduce_scatter(output, inputs)->wait();
    at::Tensor expected = at::zeros({world->rank() + 1});
    for (int64_t from = 0; from < n; ++from) expected += numbers(from + 3 * world->rank(), world->rank() + 1);
    EXPECT_TRUE(same(output[0], expected));
  });
}

/// What FSDP2 uses: an average, or a sum of scaled inputs, which are not modified.
TEST_P(C10d, AveragesAndScales) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const Group group = make_group(world);
    const int n = world->size();
    const at::Tensor sum = tensor_of(reduced(inputs_of(n, n * kEach, Dtype::fp32), ReduceOp::sum));
    const at::Tensor own = tensor_of(input_of(world->rank(), n * kEach, Dtype::fp32));
    const at::Tensor mean = sum / n;

    c10d::AllreduceOptions average;
    average.reduceOp = c10d::ReduceOp::AVG;
    Tensors tensors{own.clone().requires_grad_()};  // a leaf, as parameters are
    group->allreduce(tensors, average)->wait();
    EXPECT_TRUE(same(tensors[0], mean));

    c10d::ReduceScatterOptions scatter;
    scatter.reduceOp = c10d::ReduceOp::AVG;
    at::Tensor input = own.clone();
    at::Tensor part = at::empty({kEach});
    group->_reduce_scatter_base(part, input, scatter)->wait();
    EXPECT_TRUE(same(part, mean.narrow(0, world->rank() * kEach, kEach)));

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
    scatter.reduceOp = c10d::makePreMulSum(0.5);
#else
    scatter.reduceOp = c10d::makeNCCLPreMulSum(0.5);
#endif
    group->_reduce_scatter_base(part, input, scatter)->wait();
    EXPECT_TRUE(same(part, sum.narrow(0, world->rank() * kEach, kEach) / 2));
    EXPECT_TRUE(same(input, own));
  });
}

void check_movement(const Group& group, at::ScalarType type) {
  const int64_t n = group->getSize();
  const int64_t rank = group->getRank();
  at::Tensor own = numbers(rank, kEach, type);
  const at::Tensor all = all_numbers(n, kEach, type);
  const auto empty = [&](int64_t count) { return at::empty({count}, own.options()); };
  const auto list = [&] {
    Tensors tensors;
    for (int64_t i = 0; i < n; ++i) tensors.push_back(empty(kEach));
    return tensors;
  };

  Tensors copy{own.clone()};
  c10d::BroadcastOptions from_last;
  from_last.rootRank = n - 1;
  group->broadcast(copy, from_last)->wait();
  EXPECT_TRUE(same(copy[0], numbers(n - 1, kEach, type))) << "broadcast " << type;

  Tensors input{own};
  std::vector<Tensors> gathered{list()};
  group->allgather(gathered, input)->wait();
  EXPECT_TRUE(same(at::cat(gathered[0]), all)) << "allgather " << type;

  at::Tensor flat = empty(n * kEach);
  std::vector<Tensors> views{flat.chunk(n)};
  group->allgather(views, input)->wait();
  EXPECT_TRUE(same(flat, all)) << "allgather into views " << type;

  at::Tensor base = empty(n * kEach);
  group->_allgather_base(base, own)->wait();
  EXPECT_TRUE(same(base, all)) << "_allgather_base " << type;

  Tensors outputs{empty(n * kEach), empty(n)};
  Tensors inputs{own, own.narrow(0, 0, 1)};
  group->allgather_into_tensor_coalesced(outputs, inputs)->wait();
  EXPECT_TRUE(same(outputs[0], all) && same(outputs[1], all.view({n, kEach}).select(1, 0))) << "coalesced " << type;

  c10d::GatherOptions to_last;
  to_last.rootRank = n - 1;
  std::vector<Tensors> at_root;
  if (rank == n - 1) at_root.push_back(list());
  group->gather(at_root, input, to_last)->wait();
  EXPECT_TRUE(rank != n - 1 || same(at::cat(at_root[0]), all)) << "gather " << type;

  c10d::ScatterOptions scatter;
  scatter.rootRank = n - 1;
  Tensors part{empty(kEach)};
  std::vector<Tensors> parts;
  if (rank == n - 1) parts.push_back(all.chunk(n));
  group->scatter(part, parts, scatter)->wait();
  EXPECT_TRUE(same(part[0], own)) << "scatter " << type;
}

TEST_P(C10d, MovesEveryDtype) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const Group group = make_group(world);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kLong, at::kChar, at::kShort, at::kComplexFloat}) {
      check_movement(group, type);
    }
  });
}

/// Rank a sends a + b + 1 rows of 2 to rank b.
TEST_P(C10d, ExchangesUnevenParts) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const Group group = make_group(world);
    const int64_t n = world->size();
    const int64_t rank = world->rank();
    Tensors to;
    Tensors from;
    Tensors expected;
    std::vector<int64_t> rows;
    for (int64_t peer = 0; peer < n; ++peer) {
      rows.push_back(rank + peer + 1);
      to.push_back(numbers(rank + 3 * peer, 2 * rows.back(), at::kShort).view({-1, 2}));
      from.push_back(at::empty_like(to.back()));
      expected.push_back(numbers(peer + 3 * rank, 2 * rows.back(), at::kShort).view({-1, 2}));
    }
    at::Tensor input = at::cat(to);
    at::Tensor output = at::empty_like(input);
    group->alltoall_base(output, input, rows, rows)->wait();
    EXPECT_TRUE(same(output, at::cat(expected)));
    group->alltoall(from, to)->wait();
    EXPECT_TRUE(same(at::cat(from), at::cat(expected)));

    std::vector<int64_t> even;
    at::Tensor square = numbers(rank, n * 5).view({n, 5});
    at::Tensor turned = at::empty_like(square);
    group->alltoall_base(turned, square, even, even)->wait();
    for (int64_t peer = 0; peer < n; ++peer) EXPECT_TRUE(same(turned[peer], numbers(peer, n * 5).view({n, 5})[rank]));
  });
}

TEST_P(C10d, SendsAndReceives) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const Group group = make_group(world);
    const int n = world->size();
    if (n == 1) return;
    Tensors message{numbers(world->rank(), kEach, at::kChar)};
    Tensors received{at::empty({kEach}, at::kChar)};
    const auto receiving = group->recv(received, (world->rank() + n - 1) % n, 0);
    const auto sending = group->send(message, (world->rank() + 1) % n, 0);
    receiving->wait();
    sending->wait();
    EXPECT_TRUE(receiving->isCompleted() && receiving->isSuccess());
    EXPECT_TRUE(same(received[0], numbers((world->rank() + n - 1) % n, kEach, at::kChar)));
    group->barrier()->wait();
    group->monitoredBarrier({}, true);
  });
}

/// Waits only for the future and for a callback of it, not for the work.
TEST_P(C10d, CompletesFuturesThatAreWaitedFor) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const Group group = make_group(world);
    Tensors tensors{numbers(world->rank(), kEach)};
    const auto work = group->allreduce(tensors);
    const auto future = work->getFuture();
    const auto next = future->then([](c10::ivalue::Future& done) { return done.value().toTensorList().get(0).sum(); },
                                   c10::TensorType::get());
    next->wait();
    EXPECT_EQ(next->value().toTensor().item<float>(), all_numbers(world->size(), kEach).sum().item<float>());
    EXPECT_TRUE(work->isCompleted());
    EXPECT_TRUE(work->getFuture()->completed());
    group->barrier()->wait();
  });
}

/// Ranks wait for the works of two groups in opposite orders.
TEST_P(C10d, GroupsOfARankProgressEachOther) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    C10dOptions options;
    options.progress = std::make_shared<C10dProgress>();
    std::vector<int> all;
    for (int rank = 0; rank < world->size(); ++rank) all.push_back(rank);
    const Group first = make_group(world->split(all, "first"), options);
    const Group second = make_group(world->split(all, "second"), options);
    constexpr int64_t kLarge = 3'000'000;  // many chunks
    Tensors a{at::full({kLarge}, 1.0)};
    Tensors b{at::full({kLarge}, 2.0)};
    const auto of_first = first->allreduce(a);
    const auto of_second = second->allreduce(b);
    const bool turned = world->rank() % 2 == 1;
    (turned ? of_second : of_first)->wait();
    (turned ? of_first : of_second)->wait();
    EXPECT_TRUE(same(a[0], at::full({kLarge}, 1.0 * world->size())));
    EXPECT_TRUE(same(b[0], at::full({kLarge}, 2.0 * world->size())));
  });
}

TEST_P(C10d, GivesMemoryOfTheCommunicator) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const auto backend = make_c10d_backend(world);
    ASSERT_TRUE(backend->supportsTensorAlloc(-1));
    Tensors flat{backend->allocateTensor(kEach, at::TensorOptions(at::kBFloat16))};
    EXPECT_EQ(flat[0].scalar_type(), at::kBFloat16);
    EXPECT_EQ(flat[0].numel(), kEach);
    const void* memory = flat[0].data_ptr();
    flat[0].reset();
    flat[0] = backend->allocateTensor(2 * kEach, at::TensorOptions(at::kByte)).view(at::kBFloat16);
    EXPECT_EQ(flat[0].data_ptr(), memory) << "freed memory is cached";
    flat[0].fill_(world->rank());
    c10d::BroadcastOptions options;
    options.rootRank = world->size() - 1;
    backend->broadcast(flat, options)->wait();
    EXPECT_TRUE(same(flat[0], at::full({kEach}, world->size() - 1, at::kBFloat16)));
  });
}

/// All before anything is sent: the group stays usable.
TEST_P(C10d, RefusesWhatItCannotDo) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const Group group = make_group(world);
    const auto refusal = [](const auto& call) { return error_of<UsageError>(call); };
    const auto reduce = [&](at::Tensor tensor, c10d::ReduceOp::RedOpType op) {
      return refusal([&] {
        c10d::AllreduceOptions options;
        options.reduceOp = op;
        Tensors tensors{tensor};
        group->allreduce(tensors, options);
      });
    };
    EXPECT_THAT(reduce(at::zeros({4}), c10d::ReduceOp::BAND), AllOf(HasSubstr("BAND of Float"), HasSubstr("integer")));
    EXPECT_THAT(reduce(at::zeros({4}, at::kLong), c10d::ReduceOp::AVG), HasSubstr("AVG of Long"));
    EXPECT_THAT(reduce(at::zeros({4}, at::kComplexFloat), c10d::ReduceOp::SUM), HasSubstr("SUM of ComplexFloat"));
    EXPECT_THAT(refusal([&] {
                  Tensors two{at::zeros({4}), at::zeros({4})};
                  group->broadcast(two);
                }),
                HasSubstr("2 tensors"));
    const int next = (world->rank() + 1) % world->size();
    const auto send = [&](at::Tensor tensor, int to, int tag) {
      return refusal([&] {
        Tensors message{tensor};
        group->send(message, to, tag);
      });
    };
    EXPECT_THAT(send(at::zeros({4}), world->rank(), 0), HasSubstr("is this rank itself"));
    EXPECT_THAT(send(at::zeros({4}), world->size(), 0), HasSubstr("there is no rank"));
    if (world->size() > 1) {
      EXPECT_THAT(send(at::zeros({4}), next, -1), HasSubstr("the tag is -1"));
      EXPECT_THAT(send(at::zeros({4, 4}).t(), next, 0), HasSubstr("not contiguous"));
    }
    EXPECT_THAT(refusal([&] {
                  std::vector<int64_t> splits(static_cast<size_t>(world->size()), 9);
                  at::Tensor in = at::zeros({4});
                  at::Tensor out = at::zeros({4});
                  group->alltoall_base(out, in, splits, splits);
                }),
                HasSubstr("split sizes"));
    group->barrier()->wait();
    group->getBackend(c10::DeviceType::CPU)->shutdown();
    EXPECT_THAT(refusal([&] { group->barrier(); }), HasSubstr("shut down"));
  });
}

INSTANTIATE_TEST_SUITE_P(Thread, C10d, ::testing::ValuesIn(rank_cases("thread", {1, 2, 3}, run_thread_ranks)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Shm, C10d, ::testing::ValuesIn(rank_cases("shm", {3}, run_process_ranks)), case_name);

}  // namespace
}  // namespace caravan::testing::c10d_test
