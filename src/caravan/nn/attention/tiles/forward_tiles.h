#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "caravan/nn/attention/tiles/tile_operands.h"
#include "caravan/nn/attention/tiles/tile_scores.h"

namespace caravan::tiles {

/// Attention of the heads that share a head of keys, one after another. Types as in tile_work.h.
template <class T, class S, class E, class Out>
class Forward {
 public:
  Forward(const Sizes& size, const ScoreTerms& terms, const AttentionDropout* dropout, void* memory)
      : size_(size), scratch_(memory), factors_(dropout, scratch_), maker_(size, terms, false, scratch_) {
    packed_keys_ = scratch_.take<S>(size.tiles_of_keys() * kTileKeys * size.pitch);
    values_ = scratch_.take<E>(size.tiles_of_keys() * kTileKeys * size.pitch);
    value_rows_ = scratch_.take<E>(kTileKeys * size.pitch);
    query_rows_ = scratch_.take<S>(tile());
    queries_ = scratch_.take<S>(tile());
    scores_ = scratch_.take<float>(kTileKeys * kTileQueries);
    weights_ = sizeof(E) == 2 ? scratch_.take<E>(kTileKeys * kTileQueries) : reinterpret_cast<E*>(scores_);
    sum_ = scratch_.take<float>(tile());
    turned_ = scratch_.take<float>(tile());
  }
  int64_t bytes() const { return scratch_.bytes(); }

  /// The heads of queries that follow see these keys and values.
  void set_keys(const Rows<T>& k, const Rows<T>& v) {
    keys_.clear();
    for (int64_t key = 0; key < size_.keys; key += kTileKeys) {
      keys_.push_back(rows_of_keys(k, key, size_, packed_keys_ + key * size_.pitch));
      transpose_keys(rows_of_keys(v, key, size_, value_rows_), key, size_, values_ + key * size_.pitch);
    }
  }

  void run(const Rows<T>& q, const VisibleKeys& seen, int64_t row, int64_t head, const Rows<Out>& out,
           float* log_sum_exp) {
    for (int64_t query = 0; query < size_.queries; query += kTileQueries) {
      const QueryTile tile(seen, row, query, size_);
      transpose_queries(q, query, size_.queries_in_tile(query), size_, query_rows_, queries_);
      attend(tile.visibility(), row, head, query);
      finish(query, out, log_sum_exp + query);
    }
  }

 private:
  int64_t tile() const { return size_.pitch * kTileQueries; }

  void attend(const TileVisibility& visible, int64_t row, int64_t head, int64_t query) {
    std::fill_n(state_.largest, kTileQueries, std::numeric_limits<float>::lowest());
    std::fill_n(state_.before, kTileQueries, std::numeric_limits<float>::lowest());
    std::fill_n(state_.sum, kTileQueries, 0.0F);
    std::memset(sum_, 0, static_cast<size_t>(tile()) * sizeof(float));
    for (int64_t key = visible.first_key() / kTileKeys * kTileKeys; key < visible.end_key(); key += kTileKeys) {
      const int64_t count = size_.keys_in_tile(key);
      const TilePieces by_keys = visible.by_keys(key, count);
      const auto for_parts = [&](const auto& f) {
        for (const TilePiece& piece : by_keys) visible.for_each_part(piece, key, f);
      };
      scores_of(by_keys, keys_[static_cast<size_t>(key / kTileKeys)], queries_, size_, scores_);
      maker_.make(by_keys, head, query, key, scores_);
      for_parts([&](const TilePiece& part, const TileRanges& ranges) {
        kernels::take_scores(scores_, part, maker_.scale(), ranges, state_);
      });
      kernels::rescale(state_);
      const float* factors = factors_.of(visible, row, head, query, size_.queries_in_tile(query), key, count);
      for_parts([&](const TilePiece& part, const TileRanges& ranges) {
        kernels::take_weights(scores_, part, maker_.scale(), ranges, factors, state_, weights_);
      });
      if (std::ranges::any_of(state_.factor, [](float factor) { return factor != 1; })) {
        kernels::scale_columns(sum_, size_.width, state_.factor);
      }
      add_by_queries(visible.by_queries(key, count), values_ + key * size_.pitch, weights_, size_, sum_);
    }
  }

  void finish(int64_t query, const Rows<Out>& out, float* log_sum_exp) {
    const int64_t count = size_.queries_in_tile(query);
    for (int64_t i = 0; i < count; ++i) {
      const float sum = state_.sum[i];
      log_sum_exp[i] = sum > 0 ? state_.largest[i] + std::log(sum) : sum == 0 ? -INFINITY : sum;
      state_.factor[i] = sum == 0 ? 0 : 1 / sum;
    }
    kernels::transpose(sum_, kTileQueries, size_.width, kTileQueries, turned_, size_.pitch);
    kernels::unpack_rows(turned_, size_.pitch, count, size_.width, state_.factor, false, out.at(query), out.stride);
  }

  const Sizes& size_;
  Scratch scratch_;
  TileFactors factors_;
  ScoreMaker maker_;
  std::vector<LeftRows<S>> keys_;  ///< of each tile
  S* packed_keys_;                 ///< [tiles][kTileKeys][pitch], as far as the tensor's cannot be read
  E* values_;                      ///< [tiles][pitch][kTileKeys]
  E* value_rows_;                  ///< of one tile, packed
  S* query_rows_;                  ///< likewise
  S* queries_;                     ///< of one tile, transposed
  float* scores_;                  ///< [kTileKeys][kTileQueries]
  E* weights_;
  float* sum_;  ///< [pitch][kTileQueries]
  float* turned_;
  RunningSoftmax state_;
};

}  // namespace caravan::tiles
