#pragma once

#include <bit>
#include <cstdint>

namespace caravan::shared {

/// 16-bit floats as bits, and their conversions: exact to fp32, to the nearest (ties to even) from it.
struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

inline float to_float(Bf16 value) noexcept { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

inline float to_float(Fp16 value) noexcept {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1f;
  const uint32_t mantissa = value.bits & 0x3ff;
  uint32_t magnitude = 0;
  if (exponent == 0x1f) {
    magnitude = 0x7f800000 | mantissa << 13;  // infinity, NaN
  } else if (exponent == 0) {
    magnitude = std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24F);  // zero, subnormal
  } else {
    magnitude = (exponent + 127 - 15) << 23 | mantissa << 13;
  }
  return std::bit_cast<float>(sign | magnitude);
}

inline Bf16 to_bf16(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return {0x7fc0};  // NaN: adding to it could carry into infinity
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

inline Fp16 to_fp16(float value) noexcept {
  constexpr uint32_t kInfinity = 0x7f800000;
  constexpr uint32_t kTooLarge = 0x477ff000;        // 65520: rounds to infinity from here on
  constexpr uint32_t kSmallestNormal = 0x38800000;  // 2^-14
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t half = 0;
  if (magnitude > kInfinity) {
    half = 0x7e00;
  } else if (magnitude >= kTooLarge) {
    half = 0x7c00;
  } else if (magnitude < kSmallestNormal) {
    // The spacing of fp32 at 0.5 is 2^-24, that of subnormal fp16: the addition rounds, the low bits are the mantissa.
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - std::bit_cast<uint32_t>(0.5F);
  } else {
    half = (magnitude + 0xfff + (magnitude >> 13 & 1) - ((127 - 15) << 23)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
}

}  // namespace caravan::shared
