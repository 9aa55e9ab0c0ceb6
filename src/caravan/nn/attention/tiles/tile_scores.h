#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include "caravan/nn/attention/scores.h"
#include "caravan/nn/attention/tiles/score_tiles.h"
#include "caravan/nn/attention/tiles/tile_work.h"

namespace caravan::tiles {

/// The scores of one call, as its tiles read them.
struct ScoreTerms {
  ScoreTerms(const Scores& scores, const Sizes& size)
      : is_plain(scores.is_plain()),
        scale(size.scale),
        cap(static_cast<float>(scores.soft_cap)),
        zero(scores.zero),
        bias(scores.bias.defined() ? scores.bias.to(at::kFloat).contiguous() : at::Tensor()),
        query_positions(as_positions(scores.query_positions)),
        key_positions(as_positions(scores.key_positions)) {}

  /// For backward: where each head of each sequence adds up its gradient of the bias. Once all have,
  /// sum_of_gradients() is the gradient.
  void make_gradients(int64_t batch) { gradients = at::zeros({batch, bias.size(0), bias.size(1)}, bias.options()); }
  /// In the order of the batch, so that its bits depend on no number of threads.
  at::Tensor sum_of_gradients() const {
    const at::Tensor sum = gradients.select(0, 0).clone();
    for (int64_t row = 1; row < gradients.size(0); ++row) sum.add_(gradients.select(0, row));
    return sum;
  }

  bool is_plain;
  float scale, cap;
  int64_t zero;
  at::Tensor bias;                            ///< fp32 [heads][span]; undefined: none
  at::Tensor gradients;                       ///< fp32 [batch][heads][span]; undefined: not wanted
  at::Tensor query_positions, key_positions;  ///< int32; undefined: 0, 1, ..

 private:
  static at::Tensor as_positions(const at::Tensor& given) {
    return given.defined() ? given.to(at::kInt).contiguous() : given;
  }
};

/// Makes the scores of one tile after another.
class ScoreMaker {
 public:
  /// `size` and `terms` outlive it.
  ScoreMaker(const Sizes& size, const ScoreTerms& terms, bool is_backward, Scratch& scratch)
      : size_(size), terms_(terms) {
    if (terms.is_plain) return;
    if (is_backward) slopes_ = scratch.take<float>(kTileKeys * kTileQueries);
    if (terms.bias.defined()) biases_ = scratch.take<float>(kTileKeys * kTileQueries);
  }

  /// What the softmax multiplies the scores by.
  float scale() const { return terms_.is_plain ? terms_.scale : 1; }
  /// The derivatives of their caps, after make(); null for plain scores, and in forward.
  float* slopes() const { return slopes_; }

  /// The scores of the tile of a head that begins at `query` and `key`, in place. Plain ones stay products.
  void make(const TilePieces& pieces, int64_t head, int64_t query, int64_t key, float* s) {
    if (terms_.is_plain) return;
    kernels::TileScores scores{.scale = terms_.scale, .cap = terms_.cap};
    if (biases_ != nullptr) {
      place(query, key);
      spread(terms_.bias.const_data_ptr<float>() + head * terms_.bias.size(1));
      scores.bias = is_line_ ? biases_ + kLast : biases_;
      scores.bias_step = is_line_ ? -1 : kTileQueries;
    }
    for (const TilePiece& piece : pieces) kernels::make_scores(s, piece, scores, slopes_);
  }

  /// Adds slopes(), the gradients of the scores of the tile that was made last, to those of the bias.
  void add_gradients(const TilePieces& pieces, int64_t row, int64_t head) {
    if (!terms_.gradients.defined()) return;
    float* sums = terms_.gradients.mutable_data_ptr<float>() + (row * terms_.bias.size(0) + head) * terms_.bias.size(1);
    if (!is_line_) {
      for (const TilePiece& piece : pieces) {
        for (int64_t k = piece.begin; k < piece.end; ++k) {
          for (int64_t i = piece.from; i < piece.to; ++i) sums[index(k, i)] += slopes_[k * kTileQueries + i];
        }
      }
      return;
    }
    std::fill_n(biases_, kDiagonals, 0.0F);
    for (const TilePiece& piece : pieces) kernels::add_diagonals(slopes_, piece, biases_);
    for (int64_t d = 0; d < kDiagonals; ++d) sums[index_of_diagonal(d)] += biases_[d];
  }

 private:
  static constexpr int64_t kLast = kTileKeys - 1;
  static constexpr int64_t kDiagonals = kTileQueries + kTileKeys - 1;  ///< query - key, from -kLast on

  /// Sets the positions of a tile. Where those of queries and of keys ascend by one step, as in a text or in stripes
  /// of it, biases are the same along diagonals: a line.
  void place(int64_t query, int64_t key) {
    num_queries_ = copy_positions(terms_.query_positions, query, size_.queries, query_positions_);
    num_keys_ = copy_positions(terms_.key_positions, key, size_.keys, key_positions_);
    step_ = num_keys_ > 1      ? key_positions_[1] - key_positions_[0]
            : num_queries_ > 1 ? query_positions_[1] - query_positions_[0]
                               : 1;
    is_line_ = ascends(query_positions_, num_queries_) && ascends(key_positions_, num_keys_);
  }

  template <size_t kMost>
  static int64_t copy_positions(const at::Tensor& from, int64_t first, int64_t all, std::array<int32_t, kMost>& to) {
    const int64_t count = std::min(static_cast<int64_t>(kMost), all - first);
    for (int64_t i = 0; i < count; ++i) {
      to[static_cast<size_t>(i)] =
          from.defined() ? from.const_data_ptr<int32_t>()[first + i] : static_cast<int32_t>(first + i);
    }
    return count;
  }
  template <size_t kMost>
  bool ascends(const std::array<int32_t, kMost>& positions, int64_t count) const {
    for (int64_t i = 1; i < count; ++i) {
      if (positions[static_cast<size_t>(i)] != positions[0] + step_ * i) return false;
    }
    return true;
  }

  /// Distances that nothing sees may be beyond the biases.
  int64_t clamped(int64_t distance) const {
    return std::clamp<int64_t>(distance + terms_.zero, 0, terms_.bias.size(1) - 1);
  }
  int64_t index(int64_t k, int64_t i) const {
    return clamped(int64_t{key_positions_[static_cast<size_t>(std::min(k, num_keys_ - 1))]} -
                   query_positions_[static_cast<size_t>(std::min(i, num_queries_ - 1))]);
  }
  int64_t index_of_diagonal(int64_t d) const {
    return clamped(int64_t{key_positions_[0]} - query_positions_[0] - step_ * (d - kLast));
  }

  void spread(const float* of_head) {
    if (is_line_) {
      for (int64_t d = 0; d < kDiagonals; ++d) biases_[d] = of_head[index_of_diagonal(d)];
      return;
    }
    for (int64_t k = 0; k < kTileKeys; ++k) {
      for (int64_t i = 0; i < kTileQueries; ++i) biases_[k * kTileQueries + i] = of_head[index(k, i)];
    }
  }

  const Sizes& size_;
  const ScoreTerms& terms_;
  float* slopes_ = nullptr;  ///< [kTileKeys][kTileQueries]
  float* biases_ = nullptr;  ///< the same, or of diagonals
  bool is_line_ = true;
  int64_t step_ = 1;
  int64_t num_queries_ = 0, num_keys_ = 0;
  std::array<int32_t, kTileQueries> query_positions_{};
  std::array<int32_t, kTileKeys> key_positions_{};
};

}  // namespace caravan::tiles
