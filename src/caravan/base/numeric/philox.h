#pragma once

#include <array>
#include <cstdint>

namespace caravan {

/// Philox 4x32 with ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11): a bijection of
/// 128-bit counters, chosen by a 64-bit key, whose values look random.
[[gnu::always_inline]] inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                                                 std::array<uint32_t, 2> key) noexcept {
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{counter[0]} * 0xD2511F53u;
    const uint64_t p1 = uint64_t{counter[2]} * 0xCD9E8D57u;
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

}  // namespace caravan
