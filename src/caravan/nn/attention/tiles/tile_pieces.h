#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "caravan/nn/attention/tiles/softmax_tiles.h"

namespace caravan::tiles {

using kernels::TilePiece;
constexpr int64_t kTileSteps = kernels::kTileQueries / kernels::kTileStep;  ///< of queries

/// The pieces of a tile.
class TilePieces {
 public:
  /// Extends the last piece where it ends at `begin` and needs the same columns.
  void add(const TilePiece& piece) {
    if (piece.from >= piece.to) return;
    TilePiece* last = count_ > 0 ? &pieces_[count_ - 1] : nullptr;
    if (last != nullptr && last->end == piece.begin && last->from == piece.from && last->to == piece.to) {
      last->end = piece.end;
    } else {
      pieces_[count_++] = piece;
    }
  }
  const TilePiece* begin() const { return pieces_.data(); }
  const TilePiece* end() const { return pieces_.data() + count_; }

 private:
  std::array<TilePiece, std::max(kernels::kTileQueries, kernels::kTileKeys) / kernels::kTileStep> pieces_;
  size_t count_ = 0;
};

/// The keys that the queries of a tile see.
class TileVisibility {
 public:
  /// `first` and `end`: [kTileQueries], the keys of each of `count` queries; sets those of the other queries to none.
  /// `document` and `key_documents`: see TileRanges.
  TileVisibility(int32_t* first, int32_t* end, int64_t count, const int32_t* document, const int32_t* key_documents,
                 int64_t num_keys)
      : ranges_{first, end, document, key_documents, static_cast<int32_t>(num_keys)} {
    std::fill(first + count, first + kernels::kTileQueries, 0);
    std::fill(end + count, end + kernels::kTileQueries, 0);
    for (int64_t i = 0; i < kernels::kTileQueries; ++i) {
      Range& any = any_[static_cast<size_t>(i / kernels::kTileStep)];
      Range& every = every_[static_cast<size_t>(i / kernels::kTileStep)];
      const bool sees_none = first[i] >= end[i];
      if (!sees_none) any = {std::min(any.first, first[i]), std::max(any.end, end[i])};
      every = sees_none || document != nullptr ? kNoRange
                                               : Range{std::max(every.first, first[i]), std::min(every.end, end[i])};
    }
  }

  /// The keys that any query sees; empty if first >= end.
  int64_t first_key() const { return std::ranges::min(any_, {}, &Range::first).first; }
  int64_t end_key() const { return std::ranges::max(any_, {}, &Range::end).end; }
  /// Of the tile that begins at `key`.
  kernels::TileRanges ranges(int64_t key) const {
    kernels::TileRanges ranges = ranges_;
    ranges.key = static_cast<int32_t>(key);
    return ranges;
  }

  /// Calls f(part, ranges) for parts of a piece of the tile that begins at `key`, with null ranges where every query
  /// sees every key.
  template <class F>
  void for_each_part(const TilePiece& piece, int64_t key, const F& f) const {
    const kernels::TileRanges of_tile = ranges(key);
    const auto sees_all = [&](int64_t query) {
      const Range& every = every_[static_cast<size_t>(query / kernels::kTileStep)];
      return every.first <= key + piece.begin && every.end >= key + piece.end;
    };
    for (int64_t from = piece.from, to = from; from < piece.to; from = to) {
      const bool is_full = sees_all(from);
      while (to < piece.to && sees_all(to) == is_full) to += kernels::kTileStep;
      f(TilePiece{piece.begin, piece.end, from, to}, is_full ? kernels::TileRanges{} : of_tile);
    }
  }

  /// The tile with the keys [key, key + count), keys by queries.
  TilePieces by_keys(int64_t key, int64_t count) const {
    TilePieces pieces;
    for (int64_t begin = 0; begin < count; begin += kernels::kTileStep) {
      int64_t from = kernels::kTileQueries, to = 0;
      for (int64_t step = 0; step < kTileSteps; ++step) {
        const Range& range = any_[static_cast<size_t>(step)];
        if (range.first >= key + begin + kernels::kTileStep || range.end <= key + begin) continue;
        from = std::min(from, step * kernels::kTileStep);
        to = (step + 1) * kernels::kTileStep;
      }
      pieces.add({begin, begin + kernels::kTileStep, from, to});
    }
    return pieces;
  }

  /// Queries by keys.
  TilePieces by_queries(int64_t key, int64_t count) const {
    TilePieces pieces;
    for (int64_t step = 0; step < kTileSteps; ++step) {
      const Range& range = any_[static_cast<size_t>(step)];
      const int64_t first = std::max<int64_t>(range.first - key, 0), end = std::min<int64_t>(range.end - key, count);
      if (first >= end) continue;
      constexpr int64_t kStep = kernels::kTileStep;
      pieces.add({step * kStep, (step + 1) * kStep, first / kStep * kStep, (end + kStep - 1) / kStep * kStep});
    }
    return pieces;
  }

 private:
  struct Range {
    int32_t first, end;
  };
  static constexpr Range kNoRange{std::numeric_limits<int32_t>::max(), 0};
  using Ranges = std::array<Range, kTileSteps>;

  static constexpr Ranges filled(Range range) {
    Ranges ranges{};
    ranges.fill(range);
    return ranges;
  }

  Ranges any_ = filled(kNoRange);                                    ///< keys that any query of a step sees
  Ranges every_ = filled({0, std::numeric_limits<int32_t>::max()});  ///< and those that each of them sees
  kernels::TileRanges ranges_;
};

}  // namespace caravan::tiles
