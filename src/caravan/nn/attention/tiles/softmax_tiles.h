#pragma once

#include <cstdint>

#include "caravan/nn/product/kernels.h"

/// What attention computes between the products of its tiles, on plain memory. Single-threaded.
///
/// A tile is the scores of kTileQueries queries and up to kTileKeys keys, transposed: [keys][kTileQueries], so that
/// statistics of queries are vectors. Packed matrices have rows of `pitch` elements, the head width rounded up to
/// kTileStep, and zeros beyond the width; pack.h says what paired rows are.
namespace caravan::kernels {

inline constexpr int64_t kTileQueries = 64;
inline constexpr int64_t kTileKeys = 128;
inline constexpr int64_t kTileStep = 16;  ///< tiles are cut to multiples of it, where a query sees a part of the keys

/// Which keys each query of a tile sees, by their indices: [first, end), and of these those of its own document, if
/// there are any documents. Null: all. `key` is the tile's first key.
struct TileRanges {
  const int32_t* first = nullptr;
  const int32_t* end = nullptr;
  const int32_t* document = nullptr;       ///< of each query
  const int32_t* key_documents = nullptr;  ///< of all keys
  int32_t num_keys = 0;
  int32_t key = 0;
};

/// Keys [begin, end) of a tile with the queries [from, to) of which some see them: multiples of kTileStep.
struct TilePiece {
  int64_t begin, end, from, to;
};

inline constexpr int64_t kTileSteps = kTileQueries / kTileStep;  ///< of queries

/// Of each step of queries: the first key and one past the last that any of its queries sees, and the same of those
/// that each of them sees; without keys first >= end. With documents no key counts as seen by each.
struct StepRanges {
  int32_t any_first[kTileSteps], any_end[kTileSteps], every_first[kTileSteps], every_end[kTileSteps];
};
/// `first` and `end` of the ranges are not null.
void find_step_ranges(const TileRanges& ranges, StepRanges& steps);

/// Statistics of the queries of a tile over the keys so far.
struct RunningSoftmax {
  float largest[kTileQueries];  ///< of the scaled scores; the lowest float before the first
  float sum[kTileQueries];      ///< of exp(score - largest)
  float before[kTileQueries];   ///< `largest` before the last tile
  float factor[kTileQueries];   ///< what the last tile multiplies earlier results by
};

/// A tile is taken into the statistics in three steps: the scores of its pieces, the factor of what came before, and
/// the weights p = exp(scale * s - largest), 0 where a query does not see a key. fp32: p may be s. bf16: p is paired.
/// `factors`: of dropout, by which p is multiplied after it is added to the sum; null: none.
void take_scores(const float* s, const TilePiece& piece, float scale, const TileRanges& ranges, RunningSoftmax& state);
void rescale(RunningSoftmax& state);
template <class E>
void take_weights(const float* s, const TilePiece& piece, float scale, const TileRanges& ranges, const float* factors,
                  RunningSoftmax& state, E* p);
/// x [rows][kTileQueries] *= factor [kTileQueries].
void scale_columns(float* x, int64_t rows, const float* factor);

/// p = f exp(scale * s - log_sum_exp) and ds = exp(..) * (f dp - delta) of a piece with the factors f of dropout, 0
/// where a query does not see a key; log_sum_exp and delta are [kTileQueries]. fp32: p may be s, ds may be dp, and
/// there are no pairs. `ds_pairs`: ds, paired. `slopes`: of make_scores, by which ds is multiplied; what it was before
/// replaces them. Null: none.
template <class E>
void weights_backward(const float* s, const float* dp, const TilePiece& piece, float scale, const float* log_sum_exp,
                      const float* delta, const TileRanges& ranges, const float* factors, float* slopes, E* p, E* ds,
                      E* ds_pairs);

/// delta[row] = the sum of a[row] * b[row].
template <class T>
void row_products(const T* a, int64_t a_stride, const T* b, int64_t b_stride, int64_t rows, int64_t width,
                  float* delta);
/// to[row] = from[row] * factor[row] (or factor[0], if it is one for all) for `width` elements of packed rows. `to` may
/// be `from`, of the same stride.
template <class T>
void unpack_rows(const float* from, int64_t pitch, int64_t rows, int64_t width, const float* factor, bool is_one, T* to,
                 int64_t stride);

}  // namespace caravan::kernels
