#pragma once

// Included only by halves.h, see there.

#include <cstddef>
#include <immintrin.h>

#include "caravan/base/numeric/half.h"

namespace caravan::shared {
namespace {

using Bits = __m256i;
struct Floats {
  __m256 first, second;
};

inline Bits load_bits(const std::byte* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
inline void store_bits(std::byte* to, Bits bits) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bits); }

inline Floats operator+(Floats a, Floats b) {
  return {_mm256_add_ps(a.first, b.first), _mm256_add_ps(a.second, b.second)};
}

inline Floats split(Bits bits, Bf16) {  // the elements at even and at odd positions
  return {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)),
          _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xffff0000U))))};
}
inline Bits join(Floats values, Bf16) {
  constexpr int kOdd = 0xaa;
  const __m256i first = _mm256_castps_si256(values.first);
  const __m256i second = _mm256_castps_si256(values.second);
  const __m256i upper = _mm256_blend_epi16(_mm256_srli_epi32(first, 16), second, kOdd);
  const __m256i lower = _mm256_blend_epi16(first, _mm256_slli_epi32(second, 16), kOdd);
  // Round up if lower + 0x7fff + (upper & 1) carries out of 16 bits, that is, if one less is at least 0xffff.
  const __m256i less = _mm256_or_si256(_mm256_and_si256(upper, _mm256_set1_epi16(1)), _mm256_set1_epi16(0x7ffe));
  const __m256i up = _mm256_cmpeq_epi16(_mm256_adds_epu16(lower, less), _mm256_set1_epi16(-1));
  return _mm256_sub_epi16(upper, up);  // `up` is -1 where it is true
}

inline Floats split(Bits bits, Fp16) {  // the lower and the upper half
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(bits)), _mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1))};
}
inline Bits join(Floats values, Fp16) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm256_cvtps_ph(values.first, kNearest)),
                                 _mm256_cvtps_ph(values.second, kNearest), 1);
}

}  // namespace
}  // namespace caravan::shared
