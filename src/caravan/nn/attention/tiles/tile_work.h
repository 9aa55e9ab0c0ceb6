#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "caravan/nn/attention/tiles/softmax_tiles.h"
#include "caravan/nn/attention/tiles/tile_pieces.h"
#include "caravan/nn/attention/visible_keys.h"
#include "caravan/nn/product/pack.h"
#include "caravan/nn/product/tile_product.h"

/// What forward and backward of tiled attention share. E is the type of the operands of products: float or Bf16.
namespace caravan::tiles {

using kernels::Bf16;
using kernels::kTileKeys;
using kernels::kTileQueries;
using kernels::RunningSoftmax;
using kernels::TileRanges;

constexpr int64_t rounded_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

struct Sizes {
  Sizes(const at::Tensor& q, const at::Tensor& k)
      : batch(q.size(0)),
        queries(q.size(1)),
        keys(k.size(1)),
        heads(q.size(2)),
        kv_heads(k.size(2)),
        width(q.size(3)),
        pitch(rounded_up(width, kernels::kTileStep)),
        depth(rounded_up(width, 2)),
        tiles_of_queries(rounded_up(queries, kTileQueries) / kTileQueries),
        padded_keys(rounded_up(keys, kernels::kTileStep)),
        scale(1 / std::sqrt(static_cast<float>(width))) {}

  int64_t tiles_of_keys() const { return rounded_up(keys, kTileKeys) / kTileKeys; }
  int64_t keys_in_tile(int64_t key) const { return std::min(kTileKeys, padded_keys - key); }
  int64_t queries_in_tile(int64_t query) const { return std::min(kTileQueries, queries - query); }

  int64_t batch, queries, keys, heads, kv_heads, width;
  int64_t pitch;  ///< of packed rows
  int64_t depth;  ///< features that products read
  int64_t tiles_of_queries;
  int64_t padded_keys;
  float scale;
};

/// The rows of one head of one sequence.
template <class T>
struct Rows {
  Rows(const at::Tensor& x, int64_t row, int64_t head)
      : data(static_cast<T*>(x.data_ptr()) + row * x.stride(0) + head * x.stride(2)), stride(x.stride(1)) {}
  T* at(int64_t position) const { return data + position * stride; }
  T* data;
  int64_t stride;
};

/// Parts of one block of memory. Without memory it counts the bytes.
class Scratch {
 public:
  explicit Scratch(void* memory) : memory_(static_cast<std::byte*>(memory)) {}
  template <class T>
  T* take(int64_t count) {
    std::byte* part = memory_ == nullptr ? nullptr : memory_ + bytes_;
    bytes_ += rounded_up(count * static_cast<int64_t>(sizeof(T)), 64);
    return reinterpret_cast<T*>(part);
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  int64_t bytes_ = 0;
};

/// The keys that the queries of a tile see, by the tensors' own indices.
class QueryTile {
 public:
  QueryTile(const VisibleKeys& seen, int64_t row, int64_t query, const Sizes& size)
      : visibility_(fill(seen, row, query, size)) {}
  const TileVisibility& visibility() const { return visibility_; }

 private:
  TileVisibility fill(const VisibleKeys& seen, int64_t row, int64_t query, const Sizes& size) {
    const int64_t count = size.queries_in_tile(query);
    if (seen.has_ranges()) {
      const at::Tensor& bounds = seen.bounds();
      const auto* of_row =
          bounds.const_data_ptr<int32_t>() + (bounds.size(0) == 1 ? 0 : row * bounds.stride(0)) + query;
      std::copy_n(of_row, count, first_.begin());
      std::copy_n(of_row + size.queries, count, end_.begin());
    } else {
      for (int64_t i = 0; i < count; ++i) {
        first_[static_cast<size_t>(i)] = 0;
        end_[static_cast<size_t>(i)] = static_cast<int32_t>(seen.is_causal() ? query + i + 1 : size.keys);
      }
    }
    if (!seen.query_documents().defined()) return {first_.data(), end_.data(), count, nullptr, nullptr, 0};
    const auto* documents = seen.query_documents().const_data_ptr<int32_t>() + row * size.queries + query;
    std::copy_n(documents, count, documents_.begin());
    return {first_.data(),
            end_.data(),
            count,
            documents_.data(),
            seen.key_documents().const_data_ptr<int32_t>() + row * size.keys,
            size.keys};
  }

  std::array<int32_t, kTileQueries> first_, end_;
  std::array<int32_t, kTileQueries> documents_{};
  TileVisibility visibility_;
};

/// s [keys][kTileQueries] = the scores of a tile, unscaled, where any query sees any key.
template <class E>
void scores_of(const TilePieces& by_keys, const E* keys, const E* queries, const Sizes& size, float* s) {
  constexpr int64_t kPaired = sizeof(E) == 2 ? 2 : 1;
  for (const TilePiece& piece : by_keys) {
    multiply_tile(piece.end - piece.begin, piece.to - piece.from, size.depth, keys + piece.begin * size.pitch,
                  size.pitch, queries + piece.from * kPaired, kTileQueries, s + piece.begin * kTileQueries + piece.from,
                  kTileQueries, false);
  }
}

/// sum [depth][kTileQueries] += columns [depth][kTileKeys] p, with p by keys and queries.
template <class E>
void add_by_queries(const TilePieces& by_queries, const E* columns, const E* p, const Sizes& size, float* sum) {
  constexpr int64_t kPaired = sizeof(E) == 2 ? 2 : 1;
  for (const TilePiece& piece : by_queries) {
    multiply_tile(size.depth, piece.end - piece.begin, piece.to - piece.from, columns + piece.from, kTileKeys,
                  p + piece.from * kTileQueries + piece.begin * kPaired, kTileQueries, sum + piece.begin, kTileQueries,
                  true);
  }
}

/// sum [keys][pitch] += p rows, with p by keys and queries and rows [kTileQueries][pitch].
template <class E>
void add_by_keys(const TilePieces& by_keys, const E* p, const E* rows, const Sizes& size, float* sum) {
  for (const TilePiece& piece : by_keys) {
    multiply_tile(piece.end - piece.begin, size.pitch, piece.to - piece.from,
                  p + piece.begin * kTileQueries + piece.from, kTileQueries, rows + piece.from * size.pitch, size.pitch,
                  sum + piece.begin * size.pitch, size.pitch, true);
  }
}

template <class E>
void transpose_operand(const E* rows, const Sizes& size, E* to) {
  if constexpr (sizeof(E) == 2) {
    kernels::transpose_pairs(rows, size.pitch, kTileQueries, size.pitch, to, kTileQueries);
  } else {
    kernels::transpose(rows, size.pitch, kTileQueries, size.pitch, to, kTileQueries);
  }
}

}  // namespace caravan::tiles
