#pragma once

// Included by exactly one file per instruction set. Everything here has internal linkage: the linker would merge an
// inline function of two files, and run code for one instruction set on a processor that has only the other.

#include <array>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include "caravan/base/numeric/half.h"
#include "caravan/comm/reduce/kernels.h"
#include "caravan/comm/reduce/ops.h"
#if defined(__AVX512F__) || defined(__AVX2__) || defined(__aarch64__)
#define CARAVAN_SUM_HALVES 1
#include "caravan/comm/reduce/halves.h"
#endif

namespace caravan::shared {
namespace {

constexpr int64_t kBlock = 1024;  // elements, whose accumulators stay in the first-level cache

// An output may be an input, element by element, and nothing else overlaps. So iterations are independent, which the
// compiler cannot prove: hence ivdep.
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
void fold_two_descending(const T* a, const T* b, int64_t count, T* x, T* y) {
  constexpr int64_t kLine = 64 / sizeof(T);
  int64_t at = count / kLine * kLine;
  fold_two<T, Op>(a + at, b + at, count - at, x + at, y + at);
  while (at > 0) {
    at -= kLine;
    std::array<T, kLine> line;  // a constant number, in registers: the compiler vectorises no other loop that descends
    for (size_t i = 0; i < kLine; ++i)
      line[i] = Op::apply(a[at + static_cast<int64_t>(i)], b[at + static_cast<int64_t>(i)]);
    std::memcpy(x + at, line.data(), sizeof(line));
    std::memcpy(y + at, line.data(), sizeof(line));
  }
}

template <class T, class Op>
void fold(const Reduction& r) {
  using Acc = typename Accumulated<T>::type;
  const auto source = [&](size_t i) { return reinterpret_cast<const T*>(r.sources[i]); };
  const auto out = [&](size_t i) { return reinterpret_cast<T*>(r.outs[i]); };
  if constexpr (std::is_same_v<T, Acc>) {
    // Two ranks need no accumulators.
    if (r.sources.size() == 2) {
      if (r.outs.size() == 1) return fold_two<T, Op>(source(0), source(1), r.count, out(0));
      if (r.outs.size() == 2) {
        if (r.direction == Direction::ascending) return fold_two<T, Op>(source(0), source(1), r.count, out(0), out(1));
        return fold_two_descending<T, Op>(source(0), source(1), r.count, out(0), out(1));
      }
    }
  }
  int64_t first = 0;
#if defined(CARAVAN_SUM_HALVES)
  if constexpr (!std::is_same_v<T, Acc> && std::is_same_v<Op, Sum>) first = sum_halves<T>(r);
#endif
  alignas(64) Acc acc[kBlock];
  for (int64_t begin = first; begin < r.count; begin += kBlock) {
    const int64_t count = r.count - begin < kBlock ? r.count - begin : kBlock;
    size_t next = 1;
    if (std::is_same_v<T, Acc> && r.sources.size() > 1) {
      if constexpr (std::is_same_v<T, Acc>) fold_two<T, Op>(source(0) + begin, source(1) + begin, count, acc);
      next = 2;
    } else {
      load_block(source(0) + begin, count, acc);
    }
    for (; next < r.sources.size(); ++next) apply_block<Op>(source(next) + begin, count, acc);
    store_block(acc, count, out(0) + begin);
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    for (size_t i = 1; i < r.outs.size(); ++i) std::memcpy(out(i) + begin, out(0) + begin, bytes);
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
    case Dtype::boolean: return fold<uint8_t>(r);  // values 0 and 1: max is or, min is and
  }
}

}  // namespace
}  // namespace caravan::shared
