#include "caravan/comm/tensor.h"

#include <bit>
#include <limits>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/numeric/half.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/comm/record.h"
#include "tests/ranks/rank_case.h"

namespace caravan::tensor_test {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

constexpr int kRanks = 3;
const CommOptions kShortWaits{.timeout = std::chrono::seconds(20)};

at::Tensor numbers(int64_t begin, int64_t end) { return at::arange(begin, end, at::kFloat); }

TEST(CommTensor, DtypesConvertBothWays) {
  for (int i = 0; i < kNumDtypes; ++i) {
    const Dtype dtype = static_cast<Dtype>(i);
    EXPECT_EQ(to_dtype(to_scalar_type(dtype)), dtype);
    EXPECT_EQ(static_cast<int64_t>(c10::elementSize(to_scalar_type(dtype))), size_bytes(dtype)) << name(dtype);
  }
  EXPECT_THAT(error_of<UsageError>([] { to_dtype(at::kComplexFloat); }), HasSubstr("ComplexFloat"));
}

TEST(CommTensor, BuffersAreTheTensorsMemory) {
  const at::Tensor tensor = at::zeros({2, 3}, at::kLong);
  const Buffer buffer = buffer_of(tensor);
  EXPECT_EQ(buffer.data, tensor.data_ptr());
  EXPECT_EQ(buffer.count, 6);
  EXPECT_EQ(buffer.dtype, Dtype::int64);
  EXPECT_EQ(buffer_of(tensor.select(0, 1)).data, tensor.data_ptr<int64_t>() + 3);
  EXPECT_EQ(buffer_of(at::empty({4}, at::device(at::kMeta).dtype(at::kHalf))).data, nullptr);

  const std::string error = error_of<ShapeError>([&] { buffer_of(tensor.t(), "blocks.0.weight"); });
  EXPECT_THAT(error, HasSubstr("blocks.0.weight: the tensor [3, 2] with strides [1, 3] is not contiguous"));
  EXPECT_THAT(error_of<ShapeError>([&] { buffer_of({}, "nothing"); }), HasSubstr("undefined"));
}

/// The caller keeps only the outputs: the inputs must stay alive until all ranks have read them.
TEST(CommTensor, VerbsKeepTheirTensors) {
  run_thread_ranks(
      kRanks,
      [](const std::shared_ptr<Communicator>& world) {
        const int64_t rank = world->rank();
        constexpr int64_t kEach = 100'000;  // more than one chunk
        const auto piece = [&](int64_t r) { return numbers(r * kEach, (r + 1) * kEach); };
        const at::Tensor gathered = at::zeros({kRanks, kEach});
        const at::Tensor sum = at::zeros({kEach});
        const at::Tensor scattered = at::zeros({kEach});
        const at::Tensor exchanged = at::zeros({kRanks * kEach});
        const at::Tensor copy = at::full({kEach}, rank, at::kInt);
        const at::Tensor least = at::zeros({kEach});
        const at::Tensor letter = at::zeros({kEach});
        std::vector<Work> works{all_gather_async(*world, piece(rank), gathered),
                                all_reduce_async(*world, piece(rank), sum, ReduceOp::sum),
                                reduce_scatter_async(*world, numbers(0, kRanks * kEach), scattered, ReduceOp::max),
                                all_to_all_async(*world, numbers(0, kRanks * kEach).add_(0.5 * rank), exchanged),
                                broadcast_async(*world, copy, 2),
                                reduce_async(*world, piece(rank), rank == 1 ? least : at::Tensor(), ReduceOp::min, 1),
                                send_async(*world, piece(rank), (world->rank() + 1) % kRanks),
                                recv_async(*world, letter, (world->rank() + kRanks - 1) % kRanks)};
        const at::Tensor noise = at::full({8 * kEach}, -1.0);  // would reuse memory that is freed too early
        for (Work& work : works) work.wait();

        EXPECT_TRUE(at::equal(gathered.view({-1}), numbers(0, kRanks * kEach)));
        EXPECT_TRUE(at::equal(sum, piece(0) + piece(1) + piece(2)));
        EXPECT_TRUE(at::equal(scattered, piece(rank)));
        for (int64_t from = 0; from < kRanks; ++from) {
          EXPECT_TRUE(at::equal(exchanged.narrow(0, from * kEach, kEach), piece(rank) + 0.5 * from)) << from;
        }
        EXPECT_TRUE(at::equal(copy, at::full({kEach}, 2, at::kInt)));
        if (rank == 1) {
          EXPECT_TRUE(at::equal(least, piece(0)));
        }
        EXPECT_TRUE(at::equal(letter, piece((rank + kRanks - 1) % kRanks)));
      },
      kShortWaits);
}

/// Every 16-bit number, and fp32 numbers of all magnitudes, compared with at::Half and at::BFloat16.
TEST(CommTensor, HalfNumbersConvertAsTorchDoes) {
  for (uint32_t bits = 0; bits < 1U << 16; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    const float fp16 = c10::Half(half, c10::Half::from_bits());
    const float bf16 = c10::BFloat16(half, c10::BFloat16::from_bits());
    if (fp16 == fp16) {
      ASSERT_EQ(to_float(Fp16{half}), fp16) << bits;
    }
    if (bf16 == bf16) {
      ASSERT_EQ(to_float(Bf16{half}), bf16) << bits;
    }
  }
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 509) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (value != value) continue;
    ASSERT_EQ(to_fp16(value).bits, c10::Half(value).x) << value;
    ASSERT_EQ(to_bf16(value).bits, c10::BFloat16(value).x) << value;
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float back : {to_float(to_fp16(nan)), to_float(to_bf16(nan))}) {
    EXPECT_NE(back, back);
  }
}

TEST(CommTensor, FlatTensorsAreZeroedCountedAndFreed) {
  run_thread_ranks(
      2,
      [](const std::shared_ptr<Communicator>& world) {
        const int64_t before = MemoryCounter::current().live_bytes();
        at::Tensor flat = allocate_flat(*world, 1000, at::kDouble);
        EXPECT_GE(MemoryCounter::current().live_bytes(), before + 8000);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(flat.data_ptr()) % 64, 0U);
        EXPECT_TRUE(at::equal(flat, at::zeros({1000}, at::kDouble)));
        const at::Tensor part = flat.narrow(0, 500, 500);
        flat.reset();
        part.fill_(world->rank() + 1.0);
        all_reduce_async(*world, part, part, ReduceOp::sum).wait();
        EXPECT_EQ(part[0].item<double>(), 3.0);
        EXPECT_EQ(allocate_flat(*world, 0, at::kFloat).numel(), 0);
        EXPECT_THAT(error_of<ShapeError>([&] { allocate_flat(*world, -1, at::kFloat); }), HasSubstr("-1 elements"));
      },
      kShortWaits);
}

TEST(CommTensor, RecordTakesTensorsWithoutMemory) {
  const auto world = make_record_world(5, 1024);
  const at::Tensor meta = at::empty({1024, 16}, at::device(at::kMeta).dtype(at::kBFloat16));
  all_reduce_async(*world, meta, meta, ReduceOp::sum).wait();
  EXPECT_EQ(world->traffic().total_bytes(), 2 * 1023 * 16 * 2);
  EXPECT_EQ(allocate_flat(*world, int64_t{1} << 38, at::kFloat).numel(), int64_t{1} << 38) << "more than any memory";
}

TEST(CommTensor, OthersRefuseTensorsWithoutMemory) {
  run_thread_ranks(
      2,
      [](const std::shared_ptr<Communicator>& world) {
        const at::Tensor meta = at::empty({4}, at::device(at::kMeta).dtype(at::kFloat));
        const auto call = [&] { all_reduce_async(*world, meta, meta, ReduceOp::sum, "bucket 3").wait(); };
        const std::string error = error_of<UsageError>(call);
        EXPECT_THAT(error, HasSubstr("bucket 3"));
        EXPECT_THAT(error, HasSubstr("no memory"));
        EXPECT_THAT(error, HasSubstr("comm/tensor_test.cpp")) << "the call site";
      },
      kShortWaits);
}

}  // namespace
}  // namespace caravan::tensor_test
