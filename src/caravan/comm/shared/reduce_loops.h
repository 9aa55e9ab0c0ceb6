#pragma once

// Included by exactly one file per instruction set. Everything here has internal linkage: a function that two of those
// files shared would be compiled with the flags of one and linked into the other.

#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "caravan/comm/shared/half.h"
#include "caravan/comm/shared/reduce_kernels.h"

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
      using Unsigned = std::make_unsigned_t<T>;  // wraps around where the signed type would overflow
      return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    } else {
      return a + b;
    }
  }
};
// `a != a` is a NaN.
struct Max {
  template <class T>
  static T apply(T a, T b) {
    return (a >= b) | (a != a) ? a : b;
  }
};
struct Min {
  template <class T>
  static T apply(T a, T b) {
    return (a <= b) | (a != a) ? a : b;
  }
};

constexpr int64_t kBlock = 1024;  // elements: their accumulators stay in the nearest cache

// The outputs may be the inputs, element for element, and nothing else may overlap: each loop is free of dependencies
// between its iterations, which the compiler cannot see.
template <class T, class Acc>
inline void load_block(const T* from, int64_t count, Acc* acc) {
  int64_t i = 0;
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<T, Fp16>) {
    for (; i + 16 <= count; i += 16) {
      _mm512_store_ps(acc + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))));
    }
  }
#elif defined(__F16C__)
  if constexpr (std::is_same_v<T, Fp16>) {
    for (; i + 8 <= count; i += 8) {
      _mm256_store_ps(acc + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
    }
  }
#endif
#pragma GCC ivdep
  for (int64_t j = i; j < count; ++j) acc[j] = load(from[j]);
}

template <class Op, class T, class Acc>
inline void apply_block(const T* from, int64_t count, Acc* acc) {
  if constexpr (std::is_same_v<T, Fp16>) {
    alignas(64) float loaded[kBlock];
    load_block(from, count, loaded);
    for (int64_t i = 0; i < count; ++i) acc[i] = Op::apply(acc[i], loaded[i]);
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) acc[i] = Op::apply(acc[i], load(from[i]));
  }
}

template <class T, class Acc>
inline void store_block(const Acc* acc, int64_t count, T* to) {
  int64_t i = 0;
  if constexpr (std::is_same_v<T, Acc>) {
    std::memcpy(to, acc, static_cast<size_t>(count) * sizeof(T));
    return;
  } else if constexpr (std::is_same_v<T, Fp16>) {
#if defined(__AVX512F__)
    for (; i + 16 <= count; i += 16) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i),
                          _mm512_cvtps_ph(_mm512_load_ps(acc + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
#elif defined(__F16C__)
    for (; i + 8 <= count; i += 8) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm256_cvtps_ph(_mm256_load_ps(acc + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
#endif
    for (; i < count; ++i) to[i] = to_fp16(acc[i]);
  } else {
#pragma GCC ivdep
    for (int64_t j = i; j < count; ++j) to[j] = to_bf16(acc[j]);
  }
}

#if defined(__AVX512F__)
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
inline __m512i join(Floats values, Bf16) {
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
#endif

template <class T, class Op>
void fold_two(const T* a, const T* b, int64_t count, T* to) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) to[i] = Op::apply(a[i], b[i]);
}

template <class T, class Op>
void fold_two(const T* a, const T* b, int64_t count, T* x, T* y) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const T value = Op::apply(a[i], b[i]);
    x[i] = value;
    y[i] = value;
  }
}

template <class T, class Op>
void fold(const Reduction& r) {
  using Acc = typename Accumulated<T>::type;
  const auto source = [&](size_t i) { return reinterpret_cast<const T*>(r.sources[i]); };
  const auto out = [&](size_t i) { return reinterpret_cast<T*>(r.outs[i]); };
  if constexpr (std::is_same_v<T, Acc>) {
    // Two ranks: no block of accumulators between the inputs and the results.
    if (r.sources.size() == 2) {
      if (r.outs.size() == 1) return fold_two<T, Op>(source(0), source(1), r.count, out(0));
      if (r.outs.size() == 2) return fold_two<T, Op>(source(0), source(1), r.count, out(0), out(1));
    }
  }
  int64_t first = 0;
#if defined(__AVX512F__)
  if constexpr (!std::is_same_v<T, Acc> && std::is_same_v<Op, Sum>) {
    first = sum_halves<T>(r);
  }
#endif
  alignas(64) Acc acc[kBlock];
  T rounded[kBlock];
  for (int64_t begin = first; begin < r.count; begin += kBlock) {
    const int64_t count = r.count - begin < kBlock ? r.count - begin : kBlock;
    load_block(source(0) + begin, count, acc);
    for (size_t i = 1; i < r.sources.size(); ++i) apply_block<Op>(source(i) + begin, count, acc);
    if (r.outs.size() == 1) {
      store_block(acc, count, out(0) + begin);
      continue;
    }
    store_block(acc, count, rounded);
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    for (size_t i = 0; i < r.outs.size(); ++i) std::memcpy(out(i) + begin, rounded, bytes);
  }
}

template <class T>
void fold(const Reduction& r) {
  switch (r.op) {
    case ReduceOp::sum: return fold<T, Sum>(r);
    case ReduceOp::max: return fold<T, Max>(r);
    case ReduceOp::min: return fold<T, Min>(r);
  }
}

void reduce(const Reduction& r) {
  switch (r.dtype) {
    case Dtype::fp32: return fold<float>(r);
    case Dtype::fp64: return fold<double>(r);
    case Dtype::bf16: return fold<Bf16>(r);
    case Dtype::fp16: return fold<Fp16>(r);
    case Dtype::int64: return fold<int64_t>(r);
    case Dtype::int32: return fold<int32_t>(r);
    case Dtype::uint8:
    case Dtype::boolean: return fold<uint8_t>(r);  // 0 and 1: max is or, min is and
  }
}

}  // namespace
}  // namespace caravan::shared
