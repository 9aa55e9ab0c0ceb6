#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "caravan/nn/attention/tiles/softmax_tiles.h"

namespace caravan::tiles {

using kernels::kTileSteps;
using kernels::TilePiece;

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
    kernels::find_step_ranges(ranges_, steps_);
  }

  /// The keys that any query sees; empty if first >= end.
  int64_t first_key() const { return std::ranges::min(steps_.any_first); }
  int64_t end_key() const { return std::ranges::max(steps_.any_end); }
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
      const int64_t step = query / kernels::kTileStep;
      return steps_.every_first[step] <= key + piece.begin && steps_.every_end[step] >= key + piece.end;
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
        const bool sees_none = steps_.any_end[step] <= key + begin;
        if (sees_none || steps_.any_first[step] >= key + begin + kernels::kTileStep) continue;
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
      const int64_t first = std::max<int64_t>(steps_.any_first[step] - key, 0);
      const int64_t end = std::min<int64_t>(steps_.any_end[step] - key, count);
      if (first >= end) continue;
      constexpr int64_t kStep = kernels::kTileStep;
      pieces.add({step * kStep, (step + 1) * kStep, first / kStep * kStep, (end + kStep - 1) / kStep * kStep});
    }
    return pieces;
  }

 private:
  kernels::StepRanges steps_;
  kernels::TileRanges ranges_;
};

}  // namespace caravan::tiles
