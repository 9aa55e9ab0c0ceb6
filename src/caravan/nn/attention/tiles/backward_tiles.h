#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "caravan/nn/attention/tiles/tile_operands.h"
#include "caravan/nn/attention/tiles/tile_scores.h"

namespace caravan::tiles {

/// Gradients of the heads that share a head of keys. Types as in tile_work.h.
template <class T, class S, class E, class Out>
class Backward {
 public:
  Backward(const Sizes& size, const ScoreTerms& terms, const AttentionDropout* dropout, void* memory)
      : size_(size), scratch_(memory), factors_(dropout, scratch_), maker_(size, terms, true, scratch_) {
    const int64_t of_keys = size.tiles_of_keys() * kTileKeys * size.pitch, of_queries = size.tiles_of_queries * tile();
    packed_keys_ = scratch_.take<S>(of_keys);
    packed_values_ = scratch_.take<S>(of_keys);
    if constexpr (kIsHalf || !std::is_same_v<S, E>) key_memory_ = scratch_.take<E>(of_keys);
    of_keys_ = scratch_.take<float>(of_keys);
    of_values_ = scratch_.take<float>(of_keys);
    queries_ = scratch_.take<E>(of_queries);
    query_columns_ = scratch_.take<S>(of_queries);
    slopes_ = scratch_.take<E>(of_queries);
    slope_columns_ = scratch_.take<S>(of_queries);
    of_queries_ = scratch_.take<float>(of_queries);
    log_sum_exp_ = scratch_.take<float>(size.tiles_of_queries * kTileQueries);
    delta_ = scratch_.take<float>(size.tiles_of_queries * kTileQueries);
    scores_ = scratch_.take<float>(kTileKeys * kTileQueries);
    of_weights_ = scratch_.take<float>(kTileKeys * kTileQueries);
    rows_ = scratch_.take<S>(tile());
    if constexpr (kIsHalf) turned_ = scratch_.take<float>(tile());
    weights_ = kIsHalf ? scratch_.take<E>(kTileKeys * kTileQueries) : reinterpret_cast<E*>(scores_);
    of_scores_ = kIsHalf ? scratch_.take<E>(kTileKeys * kTileQueries) : reinterpret_cast<E*>(of_weights_);
    score_pairs_ = kIsHalf ? scratch_.take<E>(kTileKeys * kTileQueries) : of_scores_;
  }
  int64_t bytes() const { return scratch_.bytes(); }

  /// The heads of queries that follow see these keys and values.
  void set_keys(const Rows<T>& k, const Rows<T>& v) {
    keys_.clear();
    values_.clear();
    factors_of_queries_.clear();
    for (int64_t key = 0; key < size_.keys; key += kTileKeys) {
      const int64_t at = key * size_.pitch;
      keys_.push_back(rows_of_keys(k, key, size_, packed_keys_ + at));
      values_.push_back(rows_of_keys(v, key, size_, packed_values_ + at));
      if constexpr (kIsHalf) {
        transpose_keys(keys_.back(), key, size_, key_memory_ + at);
        factors_of_queries_.push_back(key_memory_ + at);
      } else if constexpr (std::is_same_v<S, E>) {
        factors_of_queries_.push_back(keys_.back());
      } else {
        factors_of_queries_.push_back(rows_of_keys(k, key, size_, key_memory_ + at));
      }
    }
    const auto bytes = static_cast<size_t>(size_.tiles_of_keys() * kTileKeys * size_.pitch) * sizeof(float);
    std::memset(of_keys_, 0, bytes);
    std::memset(of_values_, 0, bytes);
  }

  /// Adds to the gradients of keys and values what one head of queries contributes, and writes its own.
  void run(const Rows<T>& q, const Rows<T>& dy, const Rows<T>& out, const float* log_sum_exp, const VisibleKeys& seen,
           int64_t row, int64_t head, const Rows<Out>& dq) {
    pack_queries(q, dy, out, log_sum_exp);
    for (int64_t query = 0; query < size_.queries; query += kTileQueries) {
      const QueryTile tile(seen, row, query, size_);
      const TileVisibility& visible = tile.visibility();
      for (int64_t key = visible.first_key() / kTileKeys * kTileKeys; key < visible.end_key(); key += kTileKeys) {
        differentiate(visible, row, head, query, key);
      }
    }
    for (int64_t query = 0; query < size_.queries; query += kTileQueries) {
      const float* rows = of_queries_ + query * size_.pitch;
      if constexpr (kIsHalf) {
        kernels::transpose(rows, kTileQueries, size_.width, kTileQueries, turned_, size_.pitch);
        rows = turned_;
      }
      kernels::unpack_rows(rows, size_.pitch, size_.queries_in_tile(query), size_.width, &size_.scale, true,
                           dq.at(query), dq.stride);
    }
  }

  void finish_keys(const Rows<Out>& dk, const Rows<Out>& dv) const {
    constexpr float kOne = 1;
    kernels::unpack_rows(of_keys_, size_.pitch, size_.keys, size_.width, &size_.scale, true, dk.data, dk.stride);
    kernels::unpack_rows(of_values_, size_.pitch, size_.keys, size_.width, &kOne, true, dv.data, dv.stride);
  }

 private:
  /// Gradients of queries are then transposed: those of the scores are a right operand.
  static constexpr bool kIsHalf = sizeof(E) == 2;
  int64_t tile() const { return size_.pitch * kTileQueries; }

  void pack_queries(const Rows<T>& q, const Rows<T>& dy, const Rows<T>& out, const float* log_sum_exp) {
    query_rows_.clear();
    slope_rows_.clear();
    for (int64_t query = 0; query < size_.queries; query += kTileQueries) {
      const int64_t count = size_.queries_in_tile(query), at = query * size_.pitch;
      query_rows_.push_back(rows_of_queries(q, query, count, size_, queries_ + at));
      slope_rows_.push_back(rows_of_queries(dy, query, count, size_, slopes_ + at));
      transpose_queries(q, query, count, size_, rows_, query_columns_ + at);
      transpose_queries(dy, query, count, size_, rows_, slope_columns_ + at);
      kernels::row_products(dy.at(query), dy.stride, out.at(query), out.stride, count, size_.width, delta_ + query);
    }
    const int64_t padded = size_.tiles_of_queries * kTileQueries;
    std::copy_n(log_sum_exp, size_.queries, log_sum_exp_);
    std::fill(log_sum_exp_ + size_.queries, log_sum_exp_ + padded, 0.0F);
    std::fill(delta_ + size_.queries, delta_ + padded, 0.0F);
    std::memset(of_queries_, 0, static_cast<size_t>(padded * size_.pitch) * sizeof(float));
  }

  void differentiate(const TileVisibility& visible, int64_t row, int64_t head, int64_t query, int64_t key) {
    const int64_t count = size_.keys_in_tile(key), of_key = key * size_.pitch, of_query = query * size_.pitch;
    const TilePieces by_keys = visible.by_keys(key, count);
    const auto tile_of_keys = static_cast<size_t>(key / kTileKeys);
    scores_of(by_keys, keys_[tile_of_keys], query_columns_ + of_query, size_, scores_);
    scores_of(by_keys, values_[tile_of_keys], slope_columns_ + of_query, size_, of_weights_);
    maker_.make(by_keys, head, query, key, scores_);
    const float* factors = factors_.of(visible, row, head, query, size_.queries_in_tile(query), key, count);
    for (const TilePiece& piece : by_keys) {
      visible.for_each_part(piece, key, [&](const TilePiece& part, const TileRanges& ranges) {
        kernels::weights_backward(scores_, of_weights_, part, maker_.scale(), log_sum_exp_ + query, delta_ + query,
                                  ranges, factors, maker_.slopes(), weights_, of_scores_, score_pairs_);
      });
    }
    maker_.add_gradients(by_keys, row, head);
    const auto tile_of_queries = static_cast<size_t>(query / kTileQueries);
    add_by_keys<E>(by_keys, weights_, slope_rows_[tile_of_queries], size_, of_values_ + of_key);
    add_by_keys<E>(by_keys, of_scores_, query_rows_[tile_of_queries], size_, of_keys_ + of_key);
    add_by_queries(visible.by_queries(key, count), factors_of_queries_[tile_of_keys], score_pairs_, size_,
                   of_queries_ + of_query);
  }

  const Sizes& size_;
  Scratch scratch_;
  TileFactors factors_;
  ScoreMaker maker_;
  std::vector<OperandRows<S>> keys_, values_;  ///< of each tile
  /// What the gradients of scores are multiplied by for those of queries: rows of keys, of bf16 [pitch][kTileKeys].
  std::vector<std::conditional_t<kIsHalf, const E*, OperandRows<E>>> factors_of_queries_;
  std::vector<OperandRows<E>> query_rows_, slope_rows_;  ///< of each tile, slopes being gradients of the result
  S *packed_keys_, *packed_values_;    ///< [tiles][kTileKeys][pitch], as far as the tensor's cannot be read
  E* key_memory_ = nullptr;            ///< of factors_of_queries_
  float *of_keys_, *of_values_;        ///< gradients, [tiles][kTileKeys][pitch]
  E *queries_, *slopes_;               ///< [tiles][kTileQueries][pitch], as far as the tensor's cannot be read
  S *query_columns_, *slope_columns_;  ///< [tiles][pitch][kTileQueries]
  float* of_queries_;            ///< gradients, [tiles][kTileQueries][pitch]; of bf16 [tiles][pitch][kTileQueries]
  float *log_sum_exp_, *delta_;  ///< [tiles][kTileQueries]
  float *scores_, *of_weights_;  ///< [kTileKeys][kTileQueries]
  S* rows_;
  E *weights_, *of_scores_, *score_pairs_;
  float* turned_ = nullptr;
};

}  // namespace caravan::tiles
