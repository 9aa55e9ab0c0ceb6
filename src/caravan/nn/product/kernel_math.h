#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "caravan/nn/product/kernels.h"

/// Building blocks of the kernels. Always inlined, so that the loops around them vectorise for each instruction set.
namespace caravan::kernels {

#define CARAVAN_INLINE [[gnu::always_inline]] static inline

CARAVAN_INLINE float load(float x) { return x; }
CARAVAN_INLINE double load(double x) { return x; }
CARAVAN_INLINE float load(Bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
CARAVAN_INLINE float load(Fp16 x) {
  const uint32_t magnitude = x.bits & 0x7fffU;
  const float normal = std::bit_cast<float>((magnitude << 13) + (112U << 23));
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24F;
  const float infinite = std::bit_cast<float>((magnitude << 13) | 0x7f800000U);  // or NaN
  const float value = magnitude < 0x400U ? subnormal : magnitude < 0x7c00U ? normal : infinite;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | (uint32_t{x.bits} & 0x8000U) << 16);
}

CARAVAN_INLINE void store(float value, float& to) { to = value; }
CARAVAN_INLINE void store(double value, double& to) { to = value; }
/// Rounds to nearest, ties to even; NaN stays NaN.
CARAVAN_INLINE void store(float value, Bf16& to) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  to.bits = static_cast<uint16_t>(value != value ? 0x7fc0 : rounded);
}
CARAVAN_INLINE void store(float value, Fp16& to) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffU;
  const uint32_t normal = (magnitude + 0xfffU + ((magnitude >> 13) & 1U) - (112U << 23)) >> 13;
  // The spacing of fp32 at 0.5 is that of subnormal fp16: the addition rounds, and the low bits are the mantissa.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
  const uint32_t finite = magnitude < 0x38800000U ? subnormal : normal;
  const uint32_t half = magnitude > 0x7f800000U ? 0x7e00U : magnitude >= 0x477ff000U ? 0x7c00U : finite;
  to.bits = static_cast<uint16_t>(half | (bits >> 16 & 0x8000U));
}

/// a b + c, rounded once: the same on every instruction set, and slow where none has it.
CARAVAN_INLINE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
CARAVAN_INLINE double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }

/// e^x to 2 units in the last place; below -87.3 the least normal number, above 88 the value at 88; NaN stays NaN.
CARAVAN_INLINE float exponential(float x) {
  x = x < -87.3F ? -87.3F : x;
  x = x > 88.0F ? 88.0F : x;
  constexpr float kShift = 12582912;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = fused(x, 1.44269504F, kShift);
  const float n = shifted - kShift;
  const float r = fused(n, -1.42860677e-6F, fused(n, -0.693145752F, x));  // |r| <= ln(2)/2, ln 2 in two parts
  float p = 1.98412698e-4F;
  p = fused(p, r, 1.38888889e-3F);
  p = fused(p, r, 8.33333333e-3F);
  p = fused(p, r, 4.16666667e-2F);
  p = fused(p, r, 0.166666667F);
  p = fused(p, r, 0.5F);
  p = fused(p, r, 1);
  p = fused(p, r, 1);
  return p * std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127) << 23);
}
/// fp64 is for tests: accurate, but not vectorised.
CARAVAN_INLINE double exponential(double x) { return std::exp(x); }

template <class C>
CARAVAN_INLINE C sigmoid(C x) {
  return 1 / (1 + exponential(-x));
}

/// tanh(x) to 5 units in the last place, also near 0, where sigmoid cancels: the rational approximation of Eigen.
CARAVAN_INLINE float hyperbolic_tangent(float x) {
  constexpr float kOne = 7.90531111F;  // its tangent is 1 - 2^-22.9
  x = x < -kOne ? -kOne : x;
  x = x > kOne ? kOne : x;
  const float s = x * x;
  float p = -2.76076847742355e-16F;
  p = fused(p, s, 2.00018790482477e-13F);
  p = fused(p, s, -8.60467152213735e-11F);
  p = fused(p, s, 5.12229709037114e-08F);
  p = fused(p, s, 1.48572235717979e-05F);
  p = fused(p, s, 6.37261928875436e-04F);
  p = fused(p, s, 4.89352455891786e-03F);
  float q = 1.19825839466702e-06F;
  q = fused(q, s, 1.18534705686654e-04F);
  q = fused(q, s, 2.26843463243900e-03F);
  q = fused(q, s, 4.89352518554385e-03F);
  return x * p / q;
}

/// Calls f with a condition as std::bool_constant.
template <class F>
void with_bool(bool condition, F f) {
  if (condition) return f(std::true_type());
  f(std::false_type());
}

/// Reductions keep this many partial results for every vector width, so their bits do not depend on the machine.
inline constexpr int64_t kLanes = 16;

/// Calls f(i) for i in [0, count); the calls must not depend on one another. Whole vectors come first: in rows of a few
/// vectors, the checks for overlaps before a plain loop would take as long as a vector.
template <class F>
CARAVAN_INLINE void for_each_lane(int64_t count, F f) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma GCC ivdep
    for (int64_t k = 0; k < kLanes; ++k) f(i + k);
  }
  for (; i < count; ++i) f(i);
}

/// The sum of the lanes in fp64, in pairs: additions one after another would take most of the time of a short row.
template <class C>
CARAVAN_INLINE double folded(const std::array<C, kLanes>& lanes) {
  std::array<double, kLanes> sums;
  for (int64_t k = 0; k < kLanes; ++k) sums[k] = lanes[k];
#pragma GCC unroll 4
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t k = 0; k < half; ++k) sums[k] += sums[k + half];
  }
  return sums[0];
}

/// Sum of term(i), i in [0, count): partial sums in the compute type over short stretches, then in fp64.
template <class C, class Term>
CARAVAN_INLINE double sum_of(int64_t count, Term term) {
  constexpr int64_t kStretch = 128 * kLanes;
  double total = 0;
  int64_t i = 0;
  while (i + kLanes <= count) {
    std::array<C, kLanes> lanes{};
    const int64_t end = count - i < kStretch ? i + (count - i) / kLanes * kLanes : i + kStretch;
    for (; i < end; i += kLanes) {
      for (int64_t k = 0; k < kLanes; ++k) lanes[k] += term(i + k);
    }
    total += folded(lanes);
  }
  for (; i < count; ++i) total += term(i);
  return total;
}

/// The largest of values[0 .. count); ignores NaN.
template <class C>
CARAVAN_INLINE C max_of(const C* values, int64_t count) {
  // The compiler does not vectorise plain loops over lanes for a maximum. Every machine has vectors of 16 bytes.
  using Vector [[gnu::vector_size(16)]] = C;
  constexpr int kWidth = 16 / sizeof(C);
  constexpr int kVectors = kLanes / kWidth;
  std::array<C, kLanes> lanes;
  lanes.fill(-INFINITY);
  Vector best[kVectors];  // NOLINT: std::array would lose the attribute
  std::memcpy(&best, lanes.data(), sizeof(best));
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma GCC unroll 8
    for (int k = 0; k < kVectors; ++k) {
      Vector next;
      std::memcpy(&next, values + i + k * kWidth, sizeof(next));
      best[k] = next > best[k] ? next : best[k];
    }
  }
  std::memcpy(lanes.data(), &best, sizeof(best));
  for (; i < count; ++i) lanes[0] = values[i] > lanes[0] ? values[i] : lanes[0];
  C largest = lanes[0];
  for (const C lane : lanes) largest = lane > largest ? lane : largest;
  return largest;
}

}  // namespace caravan::kernels
