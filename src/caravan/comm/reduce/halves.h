#pragma once

// Vectorised sums of 16-bit floats. Included only by loops.h, see there. Each instruction set defines
//   Bits    a vector of 16-bit elements, with `load_bits` and `store_bits`
//   Floats  the same elements as two fp32 vectors, in the order that `split` and `join` agree on
//   split   converts Bits to Floats
//   join    rounds Floats to Bits: to nearest, ties to even
//
// Note [NaN in bf16 sums]: rounding adds to the lower half of the fp32 bits, and a carry could turn a NaN into another
// number. A sum that is NaN is either the default NaN or one of the summands, made quiet. The lower half of both is 0,
// because the summands come from bf16, so there is no carry and no check.

#include "caravan/base/numeric/half.h"
#include "caravan/comm/reduce/kernels.h"
#if defined(__AVX512F__)
#include "caravan/comm/reduce/halves_avx512.h"
#elif defined(__AVX2__)
#include "caravan/comm/reduce/halves_avx2.h"
#elif defined(__aarch64__)
#include "caravan/comm/reduce/halves_neon.h"
#endif

namespace caravan::shared {
namespace {

template <class T>
inline Floats load_floats(const std::byte* from) {
  return split(load_bits(from), T{});
}

/// Processes whole vectors; returns the number of elements processed.
template <class T>
int64_t sum_halves(const Reduction& r) {
  constexpr int64_t kVector = sizeof(Bits);
  const int64_t bytes = r.count * static_cast<int64_t>(sizeof(T)) / kVector * kVector;
  const std::byte* const a = r.sources[0];
  std::byte* const x = r.outs[0];
  if (r.sources.size() == 2 && r.outs.size() <= 2) {
    const std::byte* const b = r.sources[1];
    std::byte* const y = r.outs[r.outs.size() - 1];
    const bool descends = r.outs.size() == 2 && r.direction == Direction::descending;
    const int64_t step = descends ? -kVector : kVector;
    int64_t at = descends ? bytes - kVector : 0;
    for (int64_t left = bytes; left > 0; left -= kVector, at += step) {
      const Bits sum = join(load_floats<T>(a + at) + load_floats<T>(b + at), T{});
      store_bits(x + at, sum);
      if (y != x) store_bits(y + at, sum);
    }
  } else {
    for (int64_t at = 0; at < bytes; at += kVector) {
      Floats sum = load_floats<T>(a + at);
      for (size_t j = 1; j < r.sources.size(); ++j) sum = sum + load_floats<T>(r.sources[j] + at);
      const Bits rounded = join(sum, T{});
      for (std::byte* out : r.outs) store_bits(out + at, rounded);
    }
  }
  return bytes / static_cast<int64_t>(sizeof(T));
}

}  // namespace
}  // namespace caravan::shared
