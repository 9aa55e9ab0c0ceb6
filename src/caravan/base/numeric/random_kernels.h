#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "caravan/base/numeric/philox.h"

/// The loops of RandomStream, for simd::dispatch. Internal: use RandomStream.
namespace caravan::random_kernels {

#define CARAVAN_KERNEL [[gnu::always_inline]] static inline

constexpr uint64_t kBlock = 4;  ///< numbers of one Philox counter

/// Counter = (number of the block, stream): block j of the stream holds its numbers 4j .. 4j+3.
CARAVAN_KERNEL std::array<uint32_t, 4> block_of(uint64_t block, uint64_t stream, uint64_t key) {
  return philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(stream),
                     static_cast<uint32_t>(stream >> 32)},
                    {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
}

/// Conversions to float go through int32: before AVX-512 there is no instruction for unsigned integers.
CARAVAN_KERNEL float top24(uint32_t bits) { return static_cast<float>(static_cast<int32_t>(bits >> 8)); }

struct Uniform {
  CARAVAN_KERNEL void run(uint64_t block, uint64_t num_blocks, uint64_t stream, uint64_t key, float* out) {
    for (uint64_t j = 0; j < num_blocks; ++j) {
      const auto words = block_of(block + j, stream, key);
      for (int k = 0; k < 4; ++k) out[4 * j + k] = top24(words[k]) * 0x1p-24F;
    }
  }
};

struct DropoutMask {
  CARAVAN_KERNEL void run(uint64_t block, uint64_t num_blocks, uint64_t stream, uint64_t key, float* out, float keep) {
    const float threshold = keep * 0x1p24F;
    const float scale = 1.0F / keep;
    for (uint64_t j = 0; j < num_blocks; ++j) {
      const auto words = block_of(block + j, stream, key);
      for (int k = 0; k < 4; ++k) out[4 * j + k] = top24(words[k]) < threshold ? scale : 0.0F;
    }
  }
};

/// ln(x) of a positive normal number: x = 2^e m, m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m-1)/(m+1)).
CARAVAN_KERNEL float natural_log(float x) {
  constexpr uint32_t kSqrtHalf = 0x3f3504f3;
  const uint32_t bits = std::bit_cast<uint32_t>(x) - kSqrtHalf;
  const float e = static_cast<float>(static_cast<int32_t>(bits) >> 23);
  const float m = std::bit_cast<float>((bits & 0x7fffff) + kSqrtHalf);
  const float s = (m - 1) / (m + 1);  // |s| <= 0.172: the first omitted term is 2e-9 of the sum
  const float z = s * s;
  return e * 0.693147181F + s * (2 + z * (0.666666667F + z * (0.4F + z * (0.285714286F + z * 0.222222222F))));
}

/// One Box-Muller pair from two words: the radius from 31 bits of the first (so that tails reach 6.5), the angle from
/// the second: two bits choose the quadrant, the others an offset of at most pi/4 from its axis.
CARAVAN_KERNEL std::array<float, 2> normal_pair(uint32_t first, uint32_t second) {
  const float u = (static_cast<float>(static_cast<int32_t>(first >> 1)) + 1) * 0x1p-31F;  // (0, 1]
  const float radius = __builtin_sqrtf(-2 * natural_log(u));
  const uint32_t turned = second + 0x20000000;
  const float x =
      static_cast<float>(static_cast<int32_t>(turned & 0x3fffffff) - 0x20000000) * (1.57079632679F * 0x1p-30F);
  const float y = x * x;
  const float sine = x * (1 + y * (-0.166666667F + y * (8.33333333e-3F + y * (-1.98412698e-4F + y * 2.75573192e-6F))));
  const float cosine = 1 + y * (-0.5F + y * (4.16666667e-2F + y * (-1.38888889e-3F + y * 2.48015873e-5F)));
  const uint32_t quadrant = turned >> 30;
  const uint32_t cos_sign = ((quadrant + 1) & 2) << 30;
  const uint32_t sin_sign = (quadrant & 2) << 30;
  const float along = (quadrant & 1) != 0 ? sine : cosine;
  const float across = (quadrant & 1) != 0 ? cosine : sine;
  return {radius * std::bit_cast<float>(std::bit_cast<uint32_t>(along) ^ cos_sign),
          radius * std::bit_cast<float>(std::bit_cast<uint32_t>(across) ^ sin_sign)};
}

struct Normal {
  CARAVAN_KERNEL void run(uint64_t block, uint64_t num_blocks, uint64_t stream, uint64_t key, float* out) {
    for (uint64_t j = 0; j < num_blocks; ++j) {
      const auto words = block_of(block + j, stream, key);
      const auto low = normal_pair(words[0], words[1]);
      const auto high = normal_pair(words[2], words[3]);
      out[4 * j] = low[0];
      out[4 * j + 1] = low[1];
      out[4 * j + 2] = high[0];
      out[4 * j + 3] = high[1];
    }
  }
};

#undef CARAVAN_KERNEL

}  // namespace caravan::random_kernels
