#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "caravan/nn/attention/attention_dropout.h"
#include "caravan/nn/attention/tiles/softmax_tiles.h"
#include "caravan/nn/attention/tiles/tile_pieces.h"
#include "caravan/nn/attention/visible_keys.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/product/pack.h"

/// What forward and backward of tiled attention share. Types: T of the tensors; S of the operands of products of two
/// tensors (scores, and the gradients of weights); E of all other operands; Out of the results.
namespace caravan::tiles {

using kernels::Bf16;
using kernels::kTileKeys;
using kernels::kTileQueries;
using kernels::RunningSoftmax;
using kernels::TileRanges;

constexpr int64_t rounded_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

struct Sizes {
  /// `scale_`: of the scores.
  Sizes(const at::Tensor& q, const at::Tensor& k, double scale_)
      : batch(q.size(0)),
        queries(q.size(1)),
        keys(k.size(1)),
        heads(q.size(2)),
        kv_heads(k.size(2)),
        width(q.size(3)),
        pitch(rounded_up(width, kernels::kTileStep)),
        tiles_of_queries(rounded_up(queries, kTileQueries) / kTileQueries),
        padded_keys(rounded_up(keys, kernels::kTileStep)),
        scale(static_cast<float>(scale_)) {}

  int64_t tiles_of_keys() const { return rounded_up(keys, kTileKeys) / kTileKeys; }
  /// The features that products of this type read.
  template <class E>
  int64_t depth() const {
    return sizeof(E) == 2 ? rounded_up(width, 2) : width;
  }
  int64_t keys_in_tile(int64_t key) const { return std::min(kTileKeys, padded_keys - key); }
  int64_t queries_in_tile(int64_t query) const { return std::min(kTileQueries, queries - query); }

  int64_t batch, queries, keys, heads, kv_heads, width;
  int64_t pitch;  ///< of packed rows
  int64_t tiles_of_queries;
  int64_t padded_keys;
  float scale;
};

/// The rows of one head of one sequence.
template <class T>
struct Rows {
  Rows(const at::Tensor& x, int64_t row, int64_t head)
      : data(data_of<T>(x) + row * x.stride(0) + head * x.stride(2)), stride(x.stride(1)) {}
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
  QueryTile(const QueryTile&) = delete;  // visibility_ has pointers into it
  QueryTile& operator=(const QueryTile&) = delete;
  const TileVisibility& visibility() const { return visibility_; }

 private:
  TileVisibility fill(const VisibleKeys& seen, int64_t row, int64_t query, const Sizes& size) {
    const int64_t count = size.queries_in_tile(query);
    seen.ranges(row, query, count, size.keys, first_.data(), end_.data());
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

/// The factors of dropout of one tile after another.
class TileFactors {
 public:
  TileFactors(const AttentionDropout* dropout, Scratch& scratch) : dropout_(dropout) {
    if (dropout == nullptr) return;
    rows_ = scratch.take<float>(kTileQueries * kTileKeys);
    columns_ = scratch.take<float>(kTileQueries * kTileKeys);
  }
  /// [kTileKeys][kTileQueries], where a query sees a key; null without dropout.
  const float* of(const TileVisibility& visible, int64_t row, int64_t head, int64_t query, int64_t count, int64_t key,
                  int64_t keys) {
    if (dropout_ == nullptr) return nullptr;
    const TileRanges ranges = visible.ranges(key);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t first = std::max<int64_t>(ranges.first[i], key), end = std::min<int64_t>(ranges.end[i], key + keys);
      if (first >= end) continue;
      dropout_->draw(row, head, query + i, first,
                     {rows_ + i * kTileKeys + first - key, static_cast<size_t>(end - first)});
    }
    kernels::transpose(rows_, kTileKeys, count, keys, columns_, kTileQueries);
    return columns_;
  }

 private:
  const AttentionDropout* dropout_;
  float* rows_ = nullptr;
  float* columns_ = nullptr;
};

}  // namespace caravan::tiles
