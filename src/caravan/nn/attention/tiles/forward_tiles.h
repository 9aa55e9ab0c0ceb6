#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
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
    packed_values_ = scratch_.take<E>(size.tiles_of_keys() * kTileKeys * size.pitch);
    if constexpr (kIsHalf) value_rows_ = scratch_.take<E>(kTileKeys * size.pitch);
    query_rows_ = scratch_.take<S>(tile());
    queries_ = scratch_.take<S>(tile());
    scores_ = scratch_.take<float>(kTileKeys * kTileQueries);
    weights_ = kIsHalf ? scratch_.take<E>(kTileKeys * kTileQueries) : reinterpret_cast<E*>(scores_);
    sum_ = scratch_.take<float>(tile());
    if constexpr (kIsHalf) turned_ = scratch_.take<float>(tile());
  }
  int64_t bytes() const { return scratch_.bytes(); }

  /// The heads of queries that follow see these keys and values.
  void set_keys(const Rows<T>& k, const Rows<T>& v) {
    keys_.clear();
    values_.clear();
    for (int64_t key = 0; key < size_.keys; key += kTileKeys) {
      keys_.push_back(rows_of_keys(k, key, size_, packed_keys_ + key * size_.pitch));
      E* packed = packed_values_ + key * size_.pitch;
      if constexpr (kIsHalf) {
        transpose_keys(rows_of_keys(v, key, size_, value_rows_), key, size_, packed);
        values_.push_back(packed);
      } else {
        values_.push_back(rows_of_keys(v, key, size_, packed));
      }
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
  /// Sums are then transposed: the weights are a right operand.
  static constexpr bool kIsHalf = sizeof(E) == 2;
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
      if (std::ranges::any_of(state_.factor, [](float factor) { return factor != 1; })) scale_sums();
      add_by_queries(visible.by_queries(key, count), values_[static_cast<size_t>(key / kTileKeys)], weights_, size_,
                     sum_);
    }
  }

  void scale_sums() {
    if constexpr (kIsHalf) {
      kernels::scale_columns(sum_, size_.width, state_.factor);
    } else {
      kernels::unpack_rows(sum_, size_.pitch, kTileQueries, size_.width, state_.factor, false, sum_, size_.pitch);
    }
  }

  void finish(int64_t query, const Rows<Out>& out, float* log_sum_exp) {
    const int64_t count = size_.queries_in_tile(query);
    for (int64_t i = 0; i < count; ++i) {
      const float sum = state_.sum[i];
      log_sum_exp[i] = sum > 0 ? state_.largest[i] + std::log(sum) : sum == 0 ? -INFINITY : sum;
      state_.factor[i] = sum == 0 ? 0 : 1 / sum;
    }
    const float* rows = sum_;
    if constexpr (kIsHalf) {
      kernels::transpose(sum_, kTileQueries, size_.width, kTileQueries, turned_, size_.pitch);
      rows = turned_;
    }
    kernels::unpack_rows(rows, size_.pitch, count, size_.width, state_.factor, false, out.at(query), out.stride);
  }

  const Sizes& size_;
  Scratch scratch_;
  TileFactors factors_;
  ScoreMaker maker_;
  std::vector<OperandRows<S>> keys_;  ///< of each tile
  std::vector<std::conditional_t<kIsHalf, const E*, OperandRows<E>>> values_;
  S* packed_keys_;           ///< [tiles][kTileKeys][pitch], as far as the tensor's cannot be read
  E* packed_values_;         ///< likewise; of bf16 [tiles][pitch][kTileKeys]
  E* value_rows_ = nullptr;  ///< of one tile of bf16, packed
  S* query_rows_;            ///< likewise
  S* queries_;               ///< of one tile, transposed
  float* scores_;            ///< [kTileKeys][kTileQueries]
  E* weights_;
  float* sum_;  ///< [kTileQueries][pitch]; of bf16 [pitch][kTileQueries]
  float* turned_ = nullptr;
  RunningSoftmax state_;
};

}  // namespace caravan::tiles
