#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "caravan/nn/attention/tiles/tile_work.h"
#include "caravan/nn/product/pack.h"
#include "caravan/nn/product/tile_product.h"

/// The operands of the products of tiles, and these products.
namespace caravan::tiles {

/// Rows of an operand.
template <class E>
struct OperandRows {
  const E* data;
  int64_t stride;
};

/// Whether products and transposes can read these rows where they are.
template <class E, class T>
bool is_readable(const Rows<T>& x, const Sizes& size) {
  const bool is_even = size.width % 2 == 0 && x.stride % 2 == 0;
  if constexpr (std::is_same_v<T, E>) return x.stride >= size.width && (sizeof(E) == 4 || is_even);
  return false;
}

/// The rows of the tile of keys that begins at `key`: where they are, or packed into `memory` if they are not readable
/// or their last step is not full.
template <class E, class T>
OperandRows<E> rows_of_keys(const Rows<T>& x, int64_t key, const Sizes& size, E* memory) {
  const int64_t count = std::min(kTileKeys, size.keys - key);
  if constexpr (std::is_same_v<T, E>) {
    if (is_readable<E>(x, size) && count % kernels::kTileStep == 0) return {x.at(key), x.stride};
  }
  kernels::pack_rows(x.at(key), x.stride, count, size.width, memory, size.keys_in_tile(key), size.pitch);
  return {memory, size.pitch};
}

/// The rows of a tile of `count` queries as a right operand: where they are, or packed; of bf16 paired.
template <class E, class T>
OperandRows<E> rows_of_queries(const Rows<T>& x, int64_t query, int64_t count, const Sizes& size, E* memory) {
  if constexpr (sizeof(E) == 2) {
    kernels::pack_row_pairs(x.at(query), x.stride, count, size.width, memory, kTileQueries, size.pitch);
  } else {
    if constexpr (std::is_same_v<T, E>) {
      if (is_readable<E>(x, size) && count % kernels::kTileStep == 0) return {x.at(query), x.stride};
    }
    kernels::pack_rows(x.at(query), x.stride, count, size.width, memory, kTileQueries, size.pitch);
  }
  return {memory, size.pitch};
}

/// to [depth][kTileKeys] = their transpose.
template <class E>
void transpose_keys(const OperandRows<E>& rows, int64_t key, const Sizes& size, E* to) {
  kernels::transpose(rows.data, rows.stride, size.keys_in_tile(key), size.depth<E>(), to, kTileKeys);
}

/// to [width][kTileQueries], paired if it is bf16, = the transpose of `count` rows, of which `memory` holds a copy if
/// they are not readable. The other columns are whatever they were.
template <class T, class E>
void transpose_queries(const Rows<T>& x, int64_t query, int64_t count, const Sizes& size, E* memory, E* to) {
  const auto turn = [&](const E* rows, int64_t stride, int64_t width) {
    if constexpr (sizeof(E) == 2) {
      kernels::transpose_pairs(rows, stride, count, width, to, kTileQueries);
    } else {
      kernels::transpose(rows, stride, count, width, to, kTileQueries);
    }
  };
  if constexpr (std::is_same_v<T, E>) {
    if (is_readable<E>(x, size)) return turn(x.at(query), x.stride, size.width);
  }
  kernels::pack_rows(x.at(query), x.stride, count, size.width, memory, count, size.pitch);
  turn(memory, size.pitch, size.pitch);
}

/// s [keys][kTileQueries] = the scores of a tile, unscaled, where any query sees any key.
template <class E>
void scores_of(const TilePieces& by_keys, const OperandRows<E>& keys, const E* queries, const Sizes& size, float* s) {
  constexpr int64_t kPaired = sizeof(E) == 2 ? 2 : 1;
  for (const TilePiece& piece : by_keys) {
    multiply_tile(piece.end - piece.begin, piece.to - piece.from, size.depth<E>(),
                  keys.data + piece.begin * keys.stride, keys.stride, queries + piece.from * kPaired, kTileQueries,
                  s + piece.begin * kTileQueries + piece.from, kTileQueries, false);
  }
}

/// Of fp32: sum [kTileQueries][pitch] += p^T rows, with p by keys and queries, and the rows of the keys.
inline void add_by_queries(const TilePieces& by_queries, const OperandRows<float>& rows, const float* p,
                           const Sizes& size, float* sum) {
  for (const TilePiece& piece : by_queries) {
    kernels::multiply_block(piece.end - piece.begin, size.width, piece.to - piece.from,
                            {p + piece.from * kTileQueries + piece.begin, 1, kTileQueries},
                            {rows.data + piece.from * rows.stride, rows.stride}, sum + piece.begin * size.pitch,
                            size.pitch, true);
  }
}

/// Of bf16, whose p is paired, and a right operand as it is: sum [depth][kTileQueries] += columns p, with the columns
/// [depth][kTileKeys] of the keys.
inline void add_by_queries(const TilePieces& by_queries, const Bf16* columns, const Bf16* p, const Sizes& size,
                           float* sum) {
  for (const TilePiece& piece : by_queries) {
    multiply_tile(size.depth<Bf16>(), piece.end - piece.begin, piece.to - piece.from, columns + piece.from, kTileKeys,
                  p + piece.from * kTileQueries + piece.begin * 2, kTileQueries, sum + piece.begin, kTileQueries, true);
  }
}

/// sum [keys][pitch] += p rows, with p by keys and queries, and the rows of the queries, paired if they are bf16.
template <class E>
void add_by_keys(const TilePieces& by_keys, const E* p, const OperandRows<E>& rows, const Sizes& size, float* sum) {
  const int64_t columns = sizeof(E) == 2 ? size.pitch : size.width;
  for (const TilePiece& piece : by_keys) {
    multiply_tile(piece.end - piece.begin, columns, piece.to - piece.from, p + piece.begin * kTileQueries + piece.from,
                  kTileQueries, rows.data + piece.from * rows.stride, rows.stride, sum + piece.begin * size.pitch,
                  size.pitch, true);
  }
}

}  // namespace caravan::tiles
