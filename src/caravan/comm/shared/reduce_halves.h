#pragma once

// Sums of 16-bit floats in AVX-512 registers; included by reduce_loops.h alone, see there.

#include <immintrin.h>

#include "caravan/comm/shared/half.h"
#include "caravan/comm/shared/reduce_kernels.h"

namespace caravan::shared {
namespace {

/// 32 elements of 16 bits as two vectors of floats: no matter which goes where, as long as `join` puts it back.
struct Floats {
  __m512 first, second;
};
inline Floats split(__m512i bits, Bf16) {  // elements of even and of odd places
  return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000U))))};
}
inline Floats split(__m512i bits, Fp16) {  // the lower and the upper half
  return {_mm512_cvtph_ps(_mm512_castsi512_si256(bits)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(bits, 1))};
}
inline __m512i join_by_hand(Floats values) {
  const __m512i first = _mm512_castps_si512(values.first);
  const __m512i second = _mm512_castps_si512(values.second);
  // Each bit of the second where the mask has one, of the first elsewhere.
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
  const __m512i upper = _mm512_ternarylogic_epi32(mask, second, _mm512_srli_epi32(first, 16), 0xca);
  const __m512i lower = _mm512_ternarylogic_epi32(mask, _mm512_slli_epi32(second, 16), first, 0xca);
  // Up if the part cut off is more than a half, or a half and the rest is odd.
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi16(1));
  const __mmask32 up =
      _mm512_cmpgt_epu16_mask(_mm512_adds_epu16(lower, odd), _mm512_set1_epi16(static_cast<int16_t>(0x8000)));
  const __m512i rounded = _mm512_mask_add_epi16(upper, up, upper, _mm512_set1_epi16(1));
  if (__builtin_expect(_mm512_cmp_ps_mask(values.first, values.second, _CMP_UNORD_Q) == 0, 1)) return rounded;
  // Rounding could carry a NaN into infinity. What is greater than infinity, but for the sign, is one.
  const __m512i magnitude = _mm512_and_si512(upper, _mm512_set1_epi16(0x7fff));
  const __m512i cut = _mm512_min_epu16(lower, _mm512_set1_epi16(1));  // a NaN may have all its bits in the lower half
  const __mmask32 nan = _mm512_cmpgt_epu16_mask(_mm512_add_epi16(magnitude, cut), _mm512_set1_epi16(0x7f80));
  return _mm512_mask_mov_epi16(rounded, nan, _mm512_set1_epi16(0x7fc0));
}
inline __m512i join(Floats values, Bf16) {
#if defined(__AVX512BF16__)
  // The processor's own conversion takes denormals for 0 and keeps the bits of a NaN.
  constexpr int kOthers = 0x01 | 0x20 | 0x80;  // quiet NaN, denormal, signalling NaN
  const __mmask16 first = _mm512_fpclass_ps_mask(values.first, kOthers);
  const __mmask16 second = _mm512_fpclass_ps_mask(values.second, kOthers);
  if (__builtin_expect(!_kortestz_mask16_u8(first, second), 0)) return join_by_hand(values);
  const __m512i firsts_then_seconds = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(values.second, values.first));
  // Element 2i comes from place i, 2i + 1 from place 16 + i.
  const __m512i places = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                          21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(places, firsts_then_seconds);
#else
  return join_by_hand(values);
#endif
}
inline __m512i join(Floats values, Fp16) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(values.first, kNearest)),
                            _mm512_cvtps_ph(values.second, kNearest), 1);
}

inline Floats operator+(Floats a, Floats b) {
  return {_mm512_add_ps(a.first, b.first), _mm512_add_ps(a.second, b.second)};
}

template <class T>
inline Floats load_floats(const std::byte* from, T) {
  return split(_mm512_loadu_si512(from), T{});
}

/// Sums of 16-bit floats without a block of accumulators: from registers to all results. Returns how many it did.
template <class T>
int64_t sum_halves(const Reduction& r) {
  constexpr int64_t kVector = 64;
  const int64_t bytes = r.count * static_cast<int64_t>(sizeof(T)) / kVector * kVector;
  const std::byte* const a = r.sources[0];
  std::byte* const x = r.outs[0];
  if (r.sources.size() == 2 && r.outs.size() <= 2) {
    const std::byte* const b = r.sources[1];
    std::byte* const y = r.outs[r.outs.size() - 1];
    for (int64_t at = 0; at < bytes; at += kVector) {
      const __m512i sum = join(load_floats(a + at, T{}) + load_floats(b + at, T{}), T{});
      _mm512_storeu_si512(x + at, sum);
      if (y != x) _mm512_storeu_si512(y + at, sum);
    }
  } else {
    for (int64_t at = 0; at < bytes; at += kVector) {
      Floats sum = load_floats(a + at, T{});
      for (size_t j = 1; j < r.sources.size(); ++j) sum = sum + load_floats(r.sources[j] + at, T{});
      const __m512i rounded = join(sum, T{});
      for (std::byte* out : r.outs) _mm512_storeu_si512(out + at, rounded);
    }
  }
  return bytes / static_cast<int64_t>(sizeof(T));
}

}  // namespace
}  // namespace caravan::shared
