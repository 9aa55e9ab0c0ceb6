#pragma once

#include <cstdint>
#include <cstring>

namespace caravan {

/// 16-bit floats as bits. Conversion to fp32 is exact, from fp32 it rounds to nearest even. The functions are static:
/// each file that uses them compiles its own copy with its own instruction set.
struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

static inline float as_float(uint32_t bits) noexcept {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
static inline uint32_t as_bits(float value) noexcept {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

static inline float to_float(Bf16 value) noexcept { return as_float(static_cast<uint32_t>(value.bits) << 16); }

static inline float to_float(Fp16 value) noexcept {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1f;
  const uint32_t mantissa = value.bits & 0x3ff;
  uint32_t magnitude = 0;
  if (exponent == 0x1f) {
    magnitude = 0x7f800000 | mantissa << 13;  // infinity, NaN
  } else if (exponent == 0) {
    magnitude = as_bits(static_cast<float>(mantissa) * 0x1p-24F);  // zero, subnormal
  } else {
    magnitude = (exponent + 127 - 15) << 23 | mantissa << 13;
  }
  return as_float(sign | magnitude);
}

static inline Bf16 to_bf16(float value) noexcept {
  const uint32_t bits = as_bits(value);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  // Adding to a NaN could carry into infinity.
  return {static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded)};
}

static inline Fp16 to_fp16(float value) noexcept {
  constexpr uint32_t kInfinity = 0x7f800000;
  constexpr uint32_t kTooLarge = 0x477ff000;        // 65520, the smallest that rounds to infinity
  constexpr uint32_t kSmallestNormal = 0x38800000;  // 2^-14
  const uint32_t bits = as_bits(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t half = 0;
  if (magnitude > kInfinity) {
    half = 0x7e00;
  } else if (magnitude >= kTooLarge) {
    half = 0x7c00;
  } else if (magnitude < kSmallestNormal) {
    // The spacing of fp32 at 0.5 is 2^-24, that of subnormal fp16: the addition rounds, the low bits are the mantissa.
    half = as_bits(as_float(magnitude) + 0.5F) - as_bits(0.5F);
  } else {
    half = (magnitude + 0xfff + (magnitude >> 13 & 1) - ((127 - 15) << 23)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
}

}  // namespace caravan
