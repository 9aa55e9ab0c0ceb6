#include "caravan/nn/attention/tiles/softmax_tiles.h"

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
    Sees sees{ranges->first + from, ranges->end + from, ranges->document + from, key, -1};
    if constexpr (kMask == Mask::documents) {
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

template <class E, Mask kMask>
struct TakeWeights {
  CARAVAN_INLINE void run(const float* s, const TilePiece* piece, float scale, const TileRanges* ranges,
                          RunningSoftmax* state, E* p) {
    const int64_t from = piece->from, count = piece->to - from;
    const float* __restrict largest = state->largest + from;
    float* __restrict sum = state->sum + from;
    constexpr int64_t kRows = sizeof(E) == 2 ? 2 : 1;
    for (int64_t k = piece->begin; k < piece->end; k += kRows) {
      const float* row = s + k * kTileQueries + from;
      const auto weight = [&](const Sees<kMask>& sees, int64_t next, int64_t i) {
        const float value = exponential(row[next * kTileQueries + i] * scale - largest[i]);
        return sees(i) ? value : 0.0F;
      };
      const auto sees = Sees<kMask>::of(ranges, from, k);
      if constexpr (kRows == 1) {
        E* to = p + k * kTileQueries + from;
#pragma GCC ivdep
        for (int64_t i = 0; i < count; ++i) {
          const float value = weight(sees, 0, i);
          sum[i] += value;
          to[i] = value;
        }
      } else {
        auto* __restrict to = reinterpret_cast<uint32_t*>(p + k * kTileQueries) + from;
        const auto sees_next = Sees<kMask>::of(ranges, from, k + 1);
        for (int64_t i = 0; i < count; ++i) {
          const float one = weight(sees, 0, i), two = weight(sees_next, 1, i);
          sum[i] += one + two;
          to[i] = bits_of(one) | bits_of(two) << 16;
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

template <class E, Mask kMask>
struct WeightsBackward {
  CARAVAN_INLINE void run(const float* s, const float* dp, const TilePiece* piece, float scale,
                          const float* __restrict log_sum_exp, const float* __restrict delta, const TileRanges* ranges,
                          E* p, E* ds, E* ds_pairs) {
    const int64_t from = piece->from, count = piece->to - from;
    log_sum_exp += from;
    delta += from;
    for (int64_t k = piece->begin; k < piece->end; ++k) {
      const int64_t at = k * kTileQueries + from;
      const auto sees = Sees<kMask>::of(ranges, from, k);
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) {
        const float value = exponential(s[at + i] * scale - log_sum_exp[i]);
        const float slope = value * (dp[at + i] - delta[i]);
        // What is not seen may be no number.
        const bool is_seen = sees(i);
        store(is_seen ? value : 0.0F, p[at + i]);
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

template <class T>
struct RowProducts {
  CARAVAN_INLINE void run(const T* a, int64_t a_stride, const T* b, int64_t b_stride, int64_t rows, int64_t width,
                          float* delta) {
    for (int64_t row = 0; row < rows; ++row, a += a_stride, b += b_stride) {
      delta[row] = static_cast<float>(sum_of<float>(width, [=](int64_t i) { return load(a[i]) * load(b[i]); }));
    }
  }
};

template <class T>
struct UnpackRows {
  CARAVAN_INLINE void run(const float* from, int64_t pitch, int64_t rows, int64_t width, const float* factor,
                          bool is_one, T* to, int64_t stride) {
    for (int64_t row = 0; row < rows; ++row, from += pitch, to += stride) {
      const float times = factor[is_one ? 0 : row];
      for (int64_t i = 0; i < width; ++i) store(from[i] * times, to[i]);
    }
  }
};

}  // namespace

void take_scores(const float* s, const TilePiece& piece, float scale, const TileRanges& ranges, RunningSoftmax& state) {
  with_mask(ranges,
            [&](auto mask) { simd::dispatch<TakeScores<mask.value>>(s, &piece, scale, &ranges, &state.largest[0]); });
}

void rescale(RunningSoftmax& state) { simd::dispatch<Rescale>(&state); }

template <class E>
void take_weights(const float* s, const TilePiece& piece, float scale, const TileRanges& ranges, RunningSoftmax& state,
                  E* p) {
  with_mask(ranges,
            [&](auto mask) { simd::dispatch<TakeWeights<E, mask.value>>(s, &piece, scale, &ranges, &state, p); });
}
template void take_weights(const float*, const TilePiece&, float, const TileRanges&, RunningSoftmax&, float*);
template void take_weights(const float*, const TilePiece&, float, const TileRanges&, RunningSoftmax&, Bf16*);

void scale_columns(float* x, int64_t rows, const float* factor) { simd::dispatch<ScaleColumns>(x, rows, factor); }

template <class E>
void weights_backward(const float* s, const float* dp, const TilePiece& piece, float scale, const float* log_sum_exp,
                      const float* delta, const TileRanges& ranges, E* p, E* ds, E* ds_pairs) {
  with_mask(ranges, [&](auto mask) {
    simd::dispatch<WeightsBackward<E, mask.value>>(s, dp, &piece, scale, log_sum_exp, delta, &ranges, p, ds, ds_pairs);
  });
}
template void weights_backward(const float*, const float*, const TilePiece&, float, const float*, const float*,
                               const TileRanges&, float*, float*, float*);
template void weights_backward(const float*, const float*, const TilePiece&, float, const float*, const float*,
                               const TileRanges&, Bf16*, Bf16*, Bf16*);

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
