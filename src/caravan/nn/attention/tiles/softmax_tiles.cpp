#include "caravan/nn/attention/tiles/softmax_tiles.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "caravan/base/numeric/simd.h"
#include "caravan/nn/product/kernel_math.h"

namespace caravan::kernels {
namespace {

CARAVAN_INLINE uint32_t bits_of(float value) {
  Bf16 rounded;
  store(value, rounded);
  return rounded.bits;
}

enum class Mask { none, ranges, documents };

/// Which of the queries [from, ..) see a key, without a branch.
template <Mask kMask>
struct Sees {
  CARAVAN_INLINE Sees of(const TileRanges* ranges, int64_t from, int64_t row) {
    const int32_t key = ranges->key + static_cast<int32_t>(row);
    Sees sees{nullptr, nullptr, nullptr, key, -1};
    if constexpr (kMask != Mask::none) {
      sees.first = ranges->first + from;
      sees.end = ranges->end + from;
    }
    if constexpr (kMask == Mask::documents) {
      sees.document = ranges->document + from;
      if (key < ranges->num_keys) sees.key_document = ranges->key_documents[key];
    }
    return sees;
  }
  [[gnu::always_inline]] bool operator()(int64_t i) const {
    if constexpr (kMask == Mask::none) return true;
    int seen = static_cast<int>(key >= first[i]) & static_cast<int>(key < end[i]);
    if constexpr (kMask == Mask::documents) seen &= static_cast<int>(document[i] == key_document);
    return seen != 0;
  }
  const int32_t* __restrict first;
  const int32_t* __restrict end;
  const int32_t* __restrict document;
  int32_t key;
  int32_t key_document;
};

/// Calls f with the mask of these ranges as std::integral_constant.
template <class F>
void with_mask(const TileRanges& ranges, F f) {
  if (ranges.first == nullptr) return f(std::integral_constant<Mask, Mask::none>());
  if (ranges.document == nullptr) return f(std::integral_constant<Mask, Mask::ranges>());
  return f(std::integral_constant<Mask, Mask::documents>());
}

/// And with whether there are factors.
template <class F>
void with_mask_and_drops(const TileRanges& ranges, const float* factors, F f) {
  with_mask(ranges, [&](auto mask) { with_bool(factors != nullptr, [&](auto drops) { f(mask, drops); }); });
}

struct FindStepRanges {
  CARAVAN_INLINE void run(const int32_t* first, const int32_t* end, StepRanges* steps) {
    constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
    for (int64_t step = 0; step < kTileSteps; ++step, first += kTileStep, end += kTileStep) {
      int32_t any_first = kMost, any_end = 0, every_first = 0, every_end = kMost;
      for (int64_t i = 0; i < kTileStep; ++i) {
        const bool sees_none = first[i] >= end[i];
        const int32_t own_first = sees_none ? kMost : first[i], own_end = sees_none ? 0 : end[i];
        any_first = own_first < any_first ? own_first : any_first;
        any_end = own_end > any_end ? own_end : any_end;
        every_first = own_first > every_first ? own_first : every_first;
        every_end = own_end < every_end ? own_end : every_end;
      }
      steps->any_first[step] = any_first;
      steps->any_end[step] = any_end;
      steps->every_first[step] = every_first;
      steps->every_end[step] = every_end;
    }
  }
};

template <Mask kMask>
struct TakeScores {
  CARAVAN_INLINE void run(const float* __restrict s, const TilePiece* piece, float scale, const TileRanges* ranges,
                          float* __restrict largest) {
    const int64_t from = piece->from, count = piece->to - from;
    largest += from;
    for (int64_t k = piece->begin; k < piece->end; ++k) {
      const float* __restrict row = s + k * kTileQueries + from;
      const auto sees = Sees<kMask>::of(ranges, from, k);
      for (int64_t i = 0; i < count; ++i) {
        const float value = sees(i) ? row[i] * scale : std::numeric_limits<float>::lowest();
        largest[i] = value > largest[i] ? value : largest[i];
      }
    }
  }
};

struct Rescale {
  CARAVAN_INLINE void run(RunningSoftmax* state) {
    for (int64_t i = 0; i < kTileQueries; ++i) {
      const float factor = exponential(state->before[i] - state->largest[i]);
      state->before[i] = state->largest[i];
      state->factor[i] = factor;
      state->sum[i] *= factor;
    }
  }
};

template <class E, Mask kMask, bool kDrops>
struct TakeWeights {
  CARAVAN_INLINE void run(const float* s, const TilePiece* piece, float scale, const TileRanges* ranges,
                          const float* factors, RunningSoftmax* state, E* p) {
    const int64_t from = piece->from, count = piece->to - from;
    const float* __restrict largest = state->largest + from;
    float* __restrict sum = state->sum + from;
    constexpr int64_t kRows = sizeof(E) == 2 ? 2 : 1;
    for (int64_t k = piece->begin; k < piece->end; k += kRows) {
      const float* row = s + k * kTileQueries + from;
      const auto weight = [&](const Sees<kMask>& sees, int64_t next, int64_t i) {
        const float value = exponential(fused(row[next * kTileQueries + i], scale, -largest[i]));
        return sees(i) ? value : 0.0F;
      };
      const float* __restrict of_row = kDrops ? factors + k * kTileQueries + from : nullptr;
      // What is not seen has no factor.
      const auto kept = [&](const Sees<kMask>& sees, float value, int64_t next, int64_t i) {
        if constexpr (!kDrops) return value;
        return sees(i) ? value * of_row[next * kTileQueries + i] : 0.0F;
      };
      const auto sees = Sees<kMask>::of(ranges, from, k);
      if constexpr (kRows == 1) {
        E* to = p + k * kTileQueries + from;
#pragma GCC ivdep
        for (int64_t i = 0; i < count; ++i) {
          const float value = weight(sees, 0, i);
          sum[i] += value;
          to[i] = kept(sees, value, 0, i);
        }
      } else {
        auto* __restrict to = reinterpret_cast<uint32_t*>(p + k * kTileQueries) + from;
        const auto sees_next = Sees<kMask>::of(ranges, from, k + 1);
        for (int64_t i = 0; i < count; ++i) {
          const float one = weight(sees, 0, i), two = weight(sees_next, 1, i);
          sum[i] += one + two;
          to[i] = bits_of(kept(sees, one, 0, i)) | bits_of(kept(sees_next, two, 1, i)) << 16;
        }
      }
    }
  }
};

struct ScaleColumns {
  CARAVAN_INLINE void run(float* x, int64_t rows, const float* factor) {
    for (int64_t row = 0; row < rows; ++row, x += kTileQueries) {
      for (int64_t i = 0; i < kTileQueries; ++i) x[i] *= factor[i];
    }
  }
};

template <class E, Mask kMask, bool kDrops, bool kSlopes>
struct WeightsBackward {
  CARAVAN_INLINE void run(const float* s, const float* dp, const TilePiece* piece, float scale,
                          const float* __restrict log_sum_exp, const float* __restrict delta, const TileRanges* ranges,
                          const float* __restrict factors, float* __restrict slopes, E* p, E* ds, E* ds_pairs) {
    const int64_t from = piece->from, count = piece->to - from;
    log_sum_exp += from;
    delta += from;
    for (int64_t k = piece->begin; k < piece->end; ++k) {
      const int64_t at = k * kTileQueries + from;
      const auto sees = Sees<kMask>::of(ranges, from, k);
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) {
        const float value = exponential(fused(s[at + i], scale, -log_sum_exp[i]));
        const float factor = kDrops ? factors[at + i] : 1;
        float slope = value * fused(factor, dp[at + i], -delta[i]);
        // What is not seen may be no number.
        const bool is_seen = sees(i);
        if constexpr (kSlopes) {
          const float of_cap = slopes[at + i];
          slopes[at + i] = is_seen ? slope : 0.0F;
          slope *= of_cap;
        }
        store(is_seen ? value * factor : 0.0F, p[at + i]);
        store(is_seen ? slope : 0.0F, ds[at + i]);
      }
      if constexpr (sizeof(E) == 2) {
        if (k % 2 == 0) continue;
        auto* __restrict pairs = reinterpret_cast<uint32_t*>(ds_pairs + (k - 1) * kTileQueries) + from;
        const E* __restrict low = ds + at - kTileQueries;
        const E* __restrict high = ds + at;
        for (int64_t i = 0; i < count; ++i) pairs[i] = low[i].bits | uint32_t{high[i].bits} << 16;
      }
    }
  }
};

using Floats [[gnu::vector_size(16)]] = float;

template <class T>
struct RowProducts {
  CARAVAN_INLINE void run(const T* __restrict a, int64_t a_stride, const T* __restrict b, int64_t b_stride,
                          int64_t rows, int64_t width, float* __restrict delta) {
    constexpr int64_t kStretch = 256;
    constexpr int64_t kFloats = 4;
    for (int64_t row = 0; row < rows; ++row, a += a_stride, b += b_stride) {
      std::array<float, kStretch + kFloats> products;
      Floats total{};
      for (int64_t first = 0; first < width; first += kStretch) {
        const int64_t count = width - first < kStretch ? width - first : kStretch;
        for (int64_t i = 0; i < count; ++i) products[i] = load(a[first + i]) * load(b[first + i]);
        for (int64_t i = 0; i < kFloats; ++i) products[count + i] = 0;
        for (int64_t i = 0; i < count; i += kFloats) {
          Floats next;
          std::memcpy(&next, products.data() + i, sizeof(next));
          total += next;
        }
      }
      delta[row] = (total[0] + total[1]) + (total[2] + total[3]);
    }
  }
};

template <class T>
struct UnpackRows {
  CARAVAN_INLINE void run(const float* from, int64_t pitch, int64_t rows, int64_t width, const float* factor,
                          bool is_one, T* to, int64_t stride) {
    for (int64_t row = 0; row < rows; ++row, from += pitch, to += stride) {
      const float times = factor[is_one ? 0 : row];
      int64_t i = 0;
      for (; i + kLanes <= width; i += kLanes) {
        float lanes[kLanes];  // so that the compiler need not check whether `to` is `from`
        for (int64_t k = 0; k < kLanes; ++k) lanes[k] = from[i + k] * times;
        for (int64_t k = 0; k < kLanes; ++k) store(lanes[k], to[i + k]);
      }
      for (; i < width; ++i) store(from[i] * times, to[i]);
    }
  }
};

}  // namespace

void find_step_ranges(const TileRanges& ranges, StepRanges& steps) {
  simd::dispatch<FindStepRanges>(ranges.first, ranges.end, &steps);
  if (ranges.document != nullptr) std::fill_n(steps.every_end, kTileSteps, 0);
}

void take_scores(const float* s, const TilePiece& piece, float scale, const TileRanges& ranges, RunningSoftmax& state) {
  with_mask(ranges,
            [&](auto mask) { simd::dispatch<TakeScores<mask.value>>(s, &piece, scale, &ranges, &state.largest[0]); });
}

void rescale(RunningSoftmax& state) { simd::dispatch<Rescale>(&state); }

template <class E>
void take_weights(const float* s, const TilePiece& piece, float scale, const TileRanges& ranges, const float* factors,
                  RunningSoftmax& state, E* p) {
  with_mask_and_drops(ranges, factors, [&](auto mask, auto drops) {
    simd::dispatch<TakeWeights<E, mask.value, drops.value>>(s, &piece, scale, &ranges, factors, &state, p);
  });
}
template void take_weights(const float*, const TilePiece&, float, const TileRanges&, const float*, RunningSoftmax&,
                           float*);
template void take_weights(const float*, const TilePiece&, float, const TileRanges&, const float*, RunningSoftmax&,
                           Bf16*);

void scale_columns(float* x, int64_t rows, const float* factor) { simd::dispatch<ScaleColumns>(x, rows, factor); }

template <class E>
void weights_backward(const float* s, const float* dp, const TilePiece& piece, float scale, const float* log_sum_exp,
                      const float* delta, const TileRanges& ranges, const float* factors, float* slopes, E* p, E* ds,
                      E* ds_pairs) {
  with_mask_and_drops(ranges, factors, [&](auto mask, auto drops) {
    with_bool(slopes != nullptr, [&](auto has_slopes) {
      simd::dispatch<WeightsBackward<E, mask.value, drops.value, has_slopes.value>>(
          s, dp, &piece, scale, log_sum_exp, delta, &ranges, factors, slopes, p, ds, ds_pairs);
    });
  });
}
template void weights_backward(const float*, const float*, const TilePiece&, float, const float*, const float*,
                               const TileRanges&, const float*, float*, float*, float*, float*);
template void weights_backward(const float*, const float*, const TilePiece&, float, const float*, const float*,
                               const TileRanges&, const float*, float*, Bf16*, Bf16*, Bf16*);

template <class T>
void row_products(const T* a, int64_t a_stride, const T* b, int64_t b_stride, int64_t rows, int64_t width,
                  float* delta) {
  simd::dispatch<RowProducts<T>>(a, a_stride, b, b_stride, rows, width, delta);
}
template <class T>
void unpack_rows(const float* from, int64_t pitch, int64_t rows, int64_t width, const float* factor, bool is_one, T* to,
                 int64_t stride) {
  simd::dispatch<UnpackRows<T>>(from, pitch, rows, width, factor, is_one, to, stride);
}
#define CARAVAN_INSTANTIATE_ROWS(T)                                                           \
  template void row_products(const T*, int64_t, const T*, int64_t, int64_t, int64_t, float*); \
  template void unpack_rows(const float*, int64_t, int64_t, int64_t, const float*, bool, T*, int64_t);
CARAVAN_INSTANTIATE_ROWS(float)
CARAVAN_INSTANTIATE_ROWS(Bf16)
CARAVAN_INSTANTIATE_ROWS(Fp16)

}  // namespace caravan::kernels
