#include "caravan/nn/attention/tiles/score_tiles.h"

#include "caravan/base/numeric/simd.h"
#include "caravan/nn/product/kernel_math.h"

namespace caravan::kernels {
namespace {

template <bool kCaps, bool kBias, bool kSlopes>
struct MakeScores {
  CARAVAN_INLINE void run(float* s, const TilePiece* piece, const TileScores* scores, float* slopes) {
    const int64_t from = piece->from, count = piece->to - from;
    const float cap = scores->cap;
    const float scale = kCaps ? scores->scale / cap : scores->scale;
    for (int64_t k = piece->begin; k < piece->end; ++k) {
      float* __restrict row = s + k * kTileQueries + from;
      float* __restrict slope = kSlopes ? slopes + k * kTileQueries + from : nullptr;
      const float* __restrict bias = kBias ? scores->bias + k * scores->bias_step + from : nullptr;
      for (int64_t i = 0; i < count; ++i) {
        float value = row[i] * scale;
        float derivative = 1;
        if constexpr (kCaps) {
          const float capped = hyperbolic_tangent(value);
          derivative = fused(-capped, capped, 1);
          value = cap * capped;
        }
        if constexpr (kBias) value += bias[i];
        if constexpr (kSlopes) slope[i] = derivative;
        row[i] = value;
      }
    }
  }
};

struct AddDiagonals {
  CARAVAN_INLINE void run(const float* x, const TilePiece* piece, float* sums) {
    const int64_t from = piece->from, count = piece->to - from;
    for (int64_t k = piece->begin; k < piece->end; ++k) {
      const float* __restrict row = x + k * kTileQueries + from;
      float* __restrict sum = sums + from - k + kTileKeys - 1;
      for (int64_t i = 0; i < count; ++i) sum[i] += row[i];
    }
  }
};

}  // namespace

void make_scores(float* s, const TilePiece& piece, const TileScores& scores, float* slopes) {
  with_bool(scores.cap > 0, [&](auto caps) {
    with_bool(scores.bias != nullptr, [&](auto has_bias) {
      with_bool(slopes != nullptr, [&](auto has_slopes) {
        simd::dispatch<MakeScores<caps.value, has_bias.value, has_slopes.value>>(s, &piece, &scores, slopes);
      });
    });
  });
}

void add_diagonals(const float* x, const TilePiece& piece, float* sums) {
  simd::dispatch<AddDiagonals>(x, &piece, sums);
}

}  // namespace caravan::kernels
