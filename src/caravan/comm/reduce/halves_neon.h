#pragma once

// Included only by halves.h, see there.

#include <arm_neon.h>
#include <cstddef>

#include "caravan/base/numeric/half.h"

namespace caravan::shared {
namespace {

using Bits = uint32x4_t;
struct Floats {
  float32x4_t first, second;
};

inline Bits load_bits(const std::byte* from) {
  return vreinterpretq_u32_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(from)));
}
inline void store_bits(std::byte* to, Bits bits) {
  vst1q_u8(reinterpret_cast<uint8_t*>(to), vreinterpretq_u8_u32(bits));
}

inline Floats operator+(Floats a, Floats b) { return {vaddq_f32(a.first, b.first), vaddq_f32(a.second, b.second)}; }

inline Floats split(Bits bits, Bf16) {  // the elements at even and at odd positions
  return {vreinterpretq_f32_u32(vshlq_n_u32(bits, 16)),
          vreinterpretq_f32_u32(vandq_u32(bits, vdupq_n_u32(0xffff0000U)))};
}
inline uint32x4_t rounded_upper_half(float32x4_t value) {
  const uint32x4_t bits = vreinterpretq_u32_f32(value);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  return vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
}
inline Bits join(Floats values, Bf16) {
  // Inserts the upper halves of `first` below those of `second`.
  return vsriq_n_u32(rounded_upper_half(values.second), rounded_upper_half(values.first), 16);
}

inline Floats split(Bits bits, Fp16) {  // the lower and the upper half
  const float16x8_t halves = vreinterpretq_f16_u32(bits);
  return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
}
inline Bits join(Floats values, Fp16) {
  return vreinterpretq_u32_f16(vcvt_high_f16_f32(vcvt_f16_f32(values.first), values.second));
}

}  // namespace
}  // namespace caravan::shared
