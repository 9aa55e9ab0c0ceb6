#pragma once

#include <cstdint>
#include <cstring>

#include "caravan/nn/product/kernel_math.h"

/// Vectors of 8 numbers, for sums that the compiler does not vectorise. They are two registers where there is no AVX.
namespace caravan::kernels {

using Row8 [[gnu::vector_size(32)]] = float;
static_assert(sizeof(Row8) == kRowStep * sizeof(float));

CARAVAN_INLINE void load_row(const float* from, Row8& to) { std::memcpy(&to, from, sizeof(to)); }
CARAVAN_INLINE void store_row(const Row8& from, float* to) { std::memcpy(to, &from, sizeof(from)); }
CARAVAN_INLINE void load_row(const Bf16* from, Row8& to) {
  using Bits [[gnu::vector_size(16)]] = uint16_t;
  using Wide [[gnu::vector_size(32)]] = uint32_t;
  Bits bits;
  std::memcpy(&bits, from, sizeof(bits));
  const Wide wide = __builtin_convertvector(bits, Wide) << 16U;
  std::memcpy(&to, &wide, sizeof(to));
}
CARAVAN_INLINE void load_row(const Fp16* from, Row8& to) {
  float values[kRowStep];  // NOLINT: std::array is not vectorised
  for (int64_t i = 0; i < kRowStep; ++i) values[i] = load(from[i]);
  std::memcpy(&to, values, sizeof(to));
}

/// sum += a b, rounded once.
CARAVAN_INLINE void add_product(const Row8& a, const Row8& b, Row8& sum) {
  sum =
      Row8{fused(a[0], b[0], sum[0]), fused(a[1], b[1], sum[1]), fused(a[2], b[2], sum[2]), fused(a[3], b[3], sum[3]),
           fused(a[4], b[4], sum[4]), fused(a[5], b[5], sum[5]), fused(a[6], b[6], sum[6]), fused(a[7], b[7], sum[7])};
}

/// Of the elements 0 to 7 of a and 8 to 15 of b.
template <int... kElements>
CARAVAN_INLINE void shuffle(const Row8& a, const Row8& b, Row8& to) {
#if defined(__clang__)
  to = __builtin_shufflevector(a, b, kElements...);
#else
  using Elements [[gnu::vector_size(32)]] = int32_t;
  to = __builtin_shuffle(a, b, Elements{kElements...});
#endif
}

/// to[j] = the sum of sums[j].
CARAVAN_INLINE void add_lanes(const Row8* sums, float* to) {
  Row8 fours[4], twos[2], ones, even, odd;
  for (int j = 0; j < 4; ++j) {
    shuffle<0, 1, 2, 3, 8, 9, 10, 11>(sums[j], sums[j + 4], even);
    shuffle<4, 5, 6, 7, 12, 13, 14, 15>(sums[j], sums[j + 4], odd);
    fours[j] = even + odd;
  }
  for (int j = 0; j < 2; ++j) {
    shuffle<0, 1, 8, 9, 4, 5, 12, 13>(fours[j], fours[j + 2], even);
    shuffle<2, 3, 10, 11, 6, 7, 14, 15>(fours[j], fours[j + 2], odd);
    twos[j] = even + odd;
  }
  shuffle<0, 8, 2, 10, 4, 12, 6, 14>(twos[0], twos[1], even);
  shuffle<1, 9, 3, 11, 5, 13, 7, 15>(twos[0], twos[1], odd);
  ones = even + odd;
  store_row(ones, to);
}

}  // namespace caravan::kernels
