#include "caravan/comm/shared/reduce.h"

#include <cmath>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "caravan/comm/shared/half.h"
#include "tests/comm/reference.h"

namespace caravan::testing {
namespace {

using simd::Isa;

std::vector<Isa> isas() {
  std::vector<Isa> result;
  for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512, Isa::avx512_bf16}) {
    if (isa <= simd::isa()) result.push_back(isa);
  }
  return result;
}

/// Every bit pattern may come up: infinities, subnormals, NaNs.
Data random_bits(int64_t count, Dtype dtype, uint32_t seed) {
  std::mt19937 generator(seed);
  Data data(count, dtype);
  for (int64_t i = 0; i < count * size_bytes(dtype); ++i) data.bytes()[i] = static_cast<std::byte>(generator());
  return data;
}

double value_of(const Data& data, int64_t i) {
  const std::byte* at = data.bytes() + i * size_bytes(data.dtype());
  const auto read = [&]<class T>(T value) {
    std::memcpy(&value, at, sizeof(T));
    return value;
  };
  switch (data.dtype()) {
    case Dtype::fp32: return read(float{});
    case Dtype::fp64: return read(double{});
    case Dtype::bf16: return shared::to_float(read(shared::Bf16{}));
    case Dtype::fp16: return shared::to_float(read(shared::Fp16{}));
    default: return 0;
  }
}

/// Equal bits, or two NaNs.
bool same(const Data& a, const Data& b) {
  for (int64_t i = 0; i < a.count(); ++i) {
    const auto bytes = static_cast<size_t>(size_bytes(a.dtype()));
    if (std::memcmp(a.bytes() + i * bytes, b.bytes() + i * bytes, bytes) == 0) continue;
    if (!std::isnan(value_of(a, i)) || !std::isnan(value_of(b, i))) return false;
  }
  return true;
}

Data reduce(Isa isa, ReduceOp op, const std::vector<Data>& inputs, int num_outs) {
  std::vector<const std::byte*> sources;
  for (const Data& input : inputs) sources.push_back(input.bytes());
  std::vector<Data> results(static_cast<size_t>(num_outs), Data(inputs[0].count(), inputs[0].dtype()));
  std::vector<std::byte*> outs;
  for (Data& result : results) outs.push_back(result.bytes());
  shared::reduce_with(isa, op, inputs[0].dtype(), sources, inputs[0].count(), outs);
  for (const Data& result : results) EXPECT_TRUE(result == results[0]);
  return results[0];
}

}  // namespace

TEST(ReduceLoops, EveryInstructionSetGivesTheSameBits) {
  for (const Dtype dtype : kDtypes) {
    for (const ReduceOp op : kOps) {
      if (!reduces(op, dtype)) continue;
      for (const int num_sources : {1, 2, 3, 5}) {
        for (const int64_t count : {1, 31, 33, 1024, 3001}) {
          std::vector<Data> inputs;
          for (int i = 0; i < num_sources; ++i) inputs.push_back(random_bits(count, dtype, static_cast<uint32_t>(i)));
          const Data expected = reduce(Isa::baseline, op, inputs, 1);
          for (const Isa isa : isas()) {
            for (const int num_outs : {1, 2, 3}) {
              EXPECT_TRUE(same(reduce(isa, op, inputs, num_outs), expected))
                  << static_cast<int>(isa) << ' ' << name(dtype) << ' ' << name(op) << ' ' << num_sources << " sources "
                  << count;
            }
          }
        }
      }
    }
  }
}

// All sums of two numbers near each other have ties half of the time: the rounding of the vector loops is tried in
// full.
TEST(ReduceLoops, RoundsBf16TiesToEven) {
  Data a(65536, Dtype::bf16);
  Data b(65536, Dtype::bf16);
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const auto next = static_cast<uint16_t>(i ^ 1);
    std::memcpy(a.bytes() + 2 * i, &bits, 2);
    std::memcpy(b.bytes() + 2 * i, &next, 2);
  }
  for (const Isa isa : isas()) {
    const Data sum = reduce(isa, ReduceOp::sum, {a, b}, 2);
    for (int64_t i = 0; i < 65536; ++i) {
      const auto exact = static_cast<float>(value_of(a, i) + value_of(b, i));
      const shared::Bf16 rounded = shared::to_bf16(exact);
      const double expected = shared::to_float(rounded);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(value_of(sum, i))) << static_cast<int>(isa) << ' ' << i;
      } else {
        ASSERT_EQ(value_of(sum, i), expected) << static_cast<int>(isa) << ' ' << i;
      }
    }
  }
}

TEST(ReduceLoops, ResultsMayBeTheInputs) {
  for (const Isa isa : isas()) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16, Dtype::int64}) {
      std::vector<Data> inputs = inputs_of(2, 1037, dtype);
      const Data expected = reduced(inputs, ReduceOp::sum);
      const std::vector<const std::byte*> sources{inputs[0].bytes(), inputs[1].bytes()};
      const std::vector<std::byte*> outs{inputs[0].bytes(), inputs[1].bytes()};
      shared::reduce_with(isa, ReduceOp::sum, dtype, sources, 1037, outs);
      EXPECT_TRUE(inputs[0] == expected && inputs[1] == expected) << static_cast<int>(isa) << ' ' << name(dtype);
    }
  }
}

}  // namespace caravan::testing
