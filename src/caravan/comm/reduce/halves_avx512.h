#pragma once

// Included only by halves.h, see there.
//
// bf16 is rounded with integer instructions even where the processor has VCVTNE2PS2BF16: that instruction flushes
// denormals to zero, and checking for them costs more than it saves.

#include <cstddef>
#include <immintrin.h>

#include "caravan/base/numeric/half.h"

namespace caravan::shared {
namespace {

using Bits = __m512i;
struct Floats {
  __m512 first, second;
};

inline Bits load_bits(const std::byte* from) { return _mm512_loadu_si512(from); }
inline void store_bits(std::byte* to, Bits bits) { _mm512_storeu_si512(to, bits); }

inline Floats operator+(Floats a, Floats b) {
  return {_mm512_add_ps(a.first, b.first), _mm512_add_ps(a.second, b.second)};
}

inline Floats split(Bits bits, Bf16) {  // the elements at even and at odd positions
  return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000U))))};
}
inline Bits join(Floats values, Bf16) {
  const __m512i first = _mm512_castps_si512(values.first);
  const __m512i second = _mm512_castps_si512(values.second);
  // Bits of `second` where the mask is set, of `first` elsewhere.
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
  const __m512i upper = _mm512_ternarylogic_epi32(mask, second, _mm512_srli_epi32(first, 16), 0xca);
  const __m512i lower = _mm512_ternarylogic_epi32(mask, _mm512_slli_epi32(second, 16), first, 0xca);
  // Round up if the lower half is above the middle, or at the middle and the upper half is odd: lower | (upper & 1).
  const __m512i rest = _mm512_ternarylogic_epi32(lower, upper, _mm512_set1_epi16(1), 0xf8);
  const __mmask32 up = _mm512_cmpgt_epu16_mask(rest, _mm512_set1_epi16(static_cast<int16_t>(0x8000)));
  return _mm512_mask_add_epi16(upper, up, upper, _mm512_set1_epi16(1));
}

inline Floats split(Bits bits, Fp16) {  // the lower and the upper half
  return {_mm512_cvtph_ps(_mm512_castsi512_si256(bits)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(bits, 1))};
}
inline Bits join(Floats values, Fp16) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(values.first, kNearest)),
                            _mm512_cvtps_ph(values.second, kNearest), 1);
}

}  // namespace
}  // namespace caravan::shared
