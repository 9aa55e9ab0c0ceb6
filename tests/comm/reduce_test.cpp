#include "caravan/comm/reduce/reduce.h"

#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/base/numeric/half.h"
#include "tests/comm/reference.h"
#include "tests/ranks/rank_case.h"

namespace caravan::testing::reduce_test {
namespace {

using shared::Direction;
using simd::Isa;

std::vector<Isa> isas() {
  std::vector<Isa> result;
  for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512, Isa::avx512_bf16}) {
    if (isa <= simd::isa()) result.push_back(isa);
  }
  return result;
}

/// Any bit pattern, including infinities, denormals and NaNs.
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
    case Dtype::bf16: return to_float(read(Bf16{}));
    case Dtype::fp16: return to_float(read(Fp16{}));
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

constexpr Direction kDirections[] = {Direction::ascending, Direction::descending};

Data reduce(Isa isa, ReduceOp op, const std::vector<Data>& inputs, int num_outs,
            Direction direction = Direction::ascending) {
  std::vector<const std::byte*> sources;
  for (const Data& input : inputs) sources.push_back(input.bytes());
  std::vector<Data> results(static_cast<size_t>(num_outs), Data(inputs[0].count(), inputs[0].dtype()));
  std::vector<std::byte*> outs;
  for (Data& result : results) outs.push_back(result.bytes());
  shared::reduce_with(isa, op, inputs[0].dtype(), sources, inputs[0].count(), outs, direction);
  for (const Data& result : results) EXPECT_TRUE(result == results[0]);
  return results[0];
}

/// Rounds to 8 significant bits, ties to even, by arithmetic in double.
double round_to_bf16(float value) {
  if (!std::isfinite(value) || value == 0) return value;
  const double spacing = std::ldexp(1.0, std::max(std::ilogb(value), -126) - 7);
  const double rounded = std::nearbyint(value / spacing) * spacing;
  return std::abs(rounded) < std::ldexp(1.0, 128) ? rounded : std::copysign(INFINITY, value);
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
              for (const Direction direction : kDirections) {
                EXPECT_TRUE(same(reduce(isa, op, inputs, num_outs, direction), expected))
                    << simd::name(isa) << ' ' << name(dtype) << ' ' << name(op) << ' ' << num_sources << " sources "
                    << count << (direction == Direction::descending ? " descending" : "");
              }
            }
          }
        }
      }
    }
  }
}

// The sum of two adjacent numbers is a tie half of the time: this exercises all cases of rounding.
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
      const Bf16 rounded = to_bf16(exact);
      const double expected = to_float(rounded);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(value_of(sum, i))) << static_cast<int>(isa) << ' ' << i;
      } else {
        ASSERT_EQ(value_of(sum, i), expected) << static_cast<int>(isa) << ' ' << i;
      }
    }
  }
}

// Zeros, denormal numbers, numbers whose sums round up to the next power of two or to infinity, infinities, and quiet
// and signalling NaNs with few and with all bits: each with each.
TEST(ReduceLoops, SpecialValuesOfBf16) {
  std::vector<uint16_t> values;
  for (const int magnitude :
       {0x0000, 0x0001, 0x007f, 0x0080, 0x3f80, 0x3fff, 0x3b80, 0x7b7f, 0x7f7f, 0x7f80, 0x7f81, 0x7fff}) {
    values.push_back(static_cast<uint16_t>(magnitude));
    values.push_back(static_cast<uint16_t>(magnitude | 0x8000));
  }
  const size_t n = values.size();
  for (const size_t num_sources : {1, 2, 3}) {
    const auto count = static_cast<int64_t>(n * n);
    std::vector<Data> inputs(num_sources, Data(count, Dtype::bf16));
    for (size_t i = 0; i < n * n; ++i) {
      const std::array<uint16_t, 3> terms{values[i % n], values[i / n], values[i * 7 % n]};
      for (size_t j = 0; j < num_sources; ++j) std::memcpy(inputs[j].bytes() + 2 * i, &terms[j], 2);
    }
    for (const Isa isa : isas()) {
      const Data sum = reduce(isa, ReduceOp::sum, inputs, 1);
      for (int64_t i = 0; i < count; ++i) {
        auto exact = static_cast<float>(value_of(inputs[0], i));
        for (size_t j = 1; j < num_sources; ++j) exact += static_cast<float>(value_of(inputs[j], i));
        const double expected = round_to_bf16(exact);
        const double got = value_of(sum, i);
        ASSERT_TRUE(std::isnan(expected) ? std::isnan(got)
                                         : got == expected && std::signbit(got) == std::signbit(expected))
            << simd::name(isa) << ' ' << num_sources << " sources " << i << ": " << got << " for " << expected;
      }
    }
  }
}

TEST(ReduceLoops, ResultsMayBeTheInputs) {
  for (const Isa isa : isas()) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16, Dtype::int64}) {
      for (const int num_ranks : {2, 3, 4}) {
        for (const Direction direction : kDirections) {
          std::vector<Data> inputs = inputs_of(num_ranks, 3037, dtype);
          const Data expected = reduced(inputs, ReduceOp::sum);
          std::vector<const std::byte*> sources;
          std::vector<std::byte*> outs;
          for (Data& input : inputs) {
            sources.push_back(input.bytes());
            outs.push_back(input.bytes());
          }
          shared::reduce_with(isa, ReduceOp::sum, dtype, sources, 3037, outs, direction);
          for (const Data& input : inputs) EXPECT_TRUE(input == expected) << simd::name(isa) << ' ' << name(dtype);
        }
      }
    }
  }
}

TEST(Simd, CanBeLimitedButNotRaised) {
  EXPECT_EQ(simd::requested_isa("", Isa::avx512), Isa::avx512);
  EXPECT_EQ(simd::requested_isa("avx2", Isa::avx512), Isa::avx2);
  EXPECT_EQ(simd::requested_isa("baseline", Isa::avx512_bf16), Isa::baseline);
  EXPECT_THAT(error_of<UsageError>([] { simd::requested_isa("avx512", Isa::avx2); }),
              ::testing::HasSubstr("does not support avx512; the best it supports is avx2"));
  EXPECT_THAT(error_of<UsageError>([] { simd::requested_isa("avx", Isa::avx2); }),
              ::testing::AllOf(::testing::HasSubstr("unknown instruction set 'avx'; known are baseline, avx2, avx512"),
                               ::testing::HasSubstr("set CARAVAN_SIMD=avx2")));
}

}  // namespace caravan::testing::reduce_test
