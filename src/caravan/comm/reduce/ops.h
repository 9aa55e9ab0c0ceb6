#pragma once

// The operations on one element. Included only by loops.h, see there.

#include <type_traits>

#include "caravan/base/numeric/half.h"

namespace caravan::shared {
namespace {

template <class T>
struct Accumulated {
  using type = T;
};
template <>
struct Accumulated<Bf16> {
  using type = float;
};
template <>
struct Accumulated<Fp16> {
  using type = float;
};

template <class T>
inline T load(T value) {
  return value;
}
inline float load(Bf16 value) { return to_float(value); }
inline float load(Fp16 value) { return to_float(value); }

struct Sum {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>;  // wraps around; signed overflow is undefined
      return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    } else {
      return a + b;
    }
  }
};
template <class T>
inline bool is_nan(T value) {
  if constexpr (std::is_floating_point_v<T>) return __builtin_isnan(value);
  return false;
}

struct Max {
  template <class T>
  static T apply(T a, T b) {
    return (a >= b) | is_nan(a) ? a : b;
  }
};
struct Min {
  template <class T>
  static T apply(T a, T b) {
    return (a <= b) | is_nan(a) ? a : b;
  }
};

}  // namespace
}  // namespace caravan::shared
