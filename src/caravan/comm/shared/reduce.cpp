#include "caravan/comm/shared/reduce.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <type_traits>

#include "caravan/comm/shared/half.h"

namespace caravan::shared {
namespace {

template <class T>
struct Accumulator {
  using type = T;
  static T load(T value) noexcept { return value; }
  static T round(T value) noexcept { return value; }
};

template <>
struct Accumulator<Bf16> {
  using type = float;
  static float load(Bf16 value) noexcept { return to_float(value); }
  static Bf16 round(float value) noexcept { return to_bf16(value); }
};

template <>
struct Accumulator<Fp16> {
  using type = float;
  static float load(Fp16 value) noexcept { return to_float(value); }
  static Fp16 round(float value) noexcept { return to_fp16(value); }
};

template <class T>
bool is_nan(T value) noexcept {
  if constexpr (std::floating_point<T>) {
    return std::isnan(value);
  } else {
    return false;
  }
}

struct Sum {
  template <class T>
  T operator()(T a, T b) const noexcept {
    if constexpr (std::integral<T>) {
      using Unsigned = std::make_unsigned_t<T>;  // wraps around where the signed type would overflow
      return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    } else {
      return a + b;
    }
  }
};

struct Max {
  template <class T>
  T operator()(T a, T b) const noexcept {
    return a >= b || is_nan(a) ? a : b;
  }
};

struct Min {
  template <class T>
  T operator()(T a, T b) const noexcept {
    return a <= b || is_nan(a) ? a : b;
  }
};

template <class T, class Op>
void fold(std::span<const std::byte* const> sources, int64_t count, T* out, Op op) {
  using Acc = typename Accumulator<T>::type;
  constexpr int64_t kBlock = 512;  // stays in the nearest cache with its accumulators
  std::array<Acc, kBlock> acc;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    const T* first = reinterpret_cast<const T*>(sources[0]) + begin;
    for (int64_t i = 0; i < length; ++i) acc[i] = Accumulator<T>::load(first[i]);
    for (const std::byte* source : sources.subspan(1)) {
      const T* next = reinterpret_cast<const T*>(source) + begin;
      for (int64_t i = 0; i < length; ++i) acc[i] = op(acc[i], Accumulator<T>::load(next[i]));
    }
    for (int64_t i = 0; i < length; ++i) out[begin + i] = Accumulator<T>::round(acc[i]);
  }
}

template <class T>
void fold(ReduceOp op, std::span<const std::byte* const> sources, int64_t count, std::byte* out) {
  T* to = reinterpret_cast<T*>(out);
  switch (op) {
    case ReduceOp::sum: return fold(sources, count, to, Sum{});
    case ReduceOp::max: return fold(sources, count, to, Max{});
    case ReduceOp::min: return fold(sources, count, to, Min{});
  }
}

}  // namespace

void reduce_in_order(ReduceOp op, Dtype dtype, std::span<const std::byte* const> sources, int64_t count,
                     std::byte* out) {
  switch (dtype) {
    case Dtype::fp32: return fold<float>(op, sources, count, out);
    case Dtype::fp64: return fold<double>(op, sources, count, out);
    case Dtype::bf16: return fold<Bf16>(op, sources, count, out);
    case Dtype::fp16: return fold<Fp16>(op, sources, count, out);
    case Dtype::int64: return fold<int64_t>(op, sources, count, out);
    case Dtype::int32: return fold<int32_t>(op, sources, count, out);
    case Dtype::uint8:
    case Dtype::boolean:  // 0 and 1: max is or, min is and
      return fold<uint8_t>(op, sources, count, out);
  }
}

}  // namespace caravan::shared
