#pragma once

#include <cstdint>

#include "caravan/nn/attention/tiles/score_tiles.h"
#include "caravan/nn/product/kernels.h"

/// What attention of one query computes, on plain memory: rows of keys and values are read once, for all heads that
/// share them. Single-threaded, the same bits on every machine.
namespace caravan::kernels {

inline constexpr int64_t kRowBlock = 8;  ///< rows that are read at once

/// Heads of queries that share a head of keys.
struct QueryHeads {
  int64_t count, width;
  int64_t pitch;  ///< of packed rows
};

/// Rows of a head of keys or values, `stride` elements apart.
template <class T>
struct HeadRows {
  const T* data;
  int64_t stride, count;
};

/// s [heads][s_pitch] = q, packed fp32 rows, times keys. s_pitch is a multiple of kRowBlock; up to the next multiple
/// s is overwritten. `memory`: kRowBlock packed rows.
template <class T>
void multiply_keys(const QueryHeads& heads, const float* q, const HeadRows<T>& keys, float* s, int64_t s_pitch,
                   float* memory);

/// Which of the keys a query sees: those with its document. Null: all.
struct SeenRows {
  const int32_t* documents = nullptr;
  int32_t document = 0;
};
/// s = exp(score - largest), 0 where a key is not seen, of the scores that `scores` makes of s (bias_step is 1). Sets
/// the largest score, the lowest float if there is none, and the sum.
void weigh_keys(float* s, int64_t count, const TileScores& scores, const SeenRows& seen, float& largest, float& sum);

/// sum [heads][sum_pitch] += weights p [heads][p_pitch] times values.
template <class T>
void add_values(const QueryHeads& heads, const float* p, int64_t p_pitch, const HeadRows<T>& values, float* sum,
                int64_t sum_pitch, float* memory);

/// out = the attention of a head, from `count` pieces of its keys that are `step` floats apart: of each a packed row of
/// add_values, and then `largest` and `sum` of weigh_keys. Overwrites the first row. 0 if nothing is seen.
template <class T>
void merge_pieces(float* pieces, int64_t count, int64_t step, int64_t width, int64_t pitch, T* out);

}  // namespace caravan::kernels
