#pragma once

#include <cstdint>
#include <numeric>

namespace caravan {

/// In how many parts techniques that split layers or sequences cut what a model computes with.
struct SplitParts {
  int64_t heads = 1;    ///< of attention
  int64_t experts = 1;  ///< of a layer
  int64_t stream = 1;   ///< a sequence of the residual stream
  int64_t pieces = 1;   ///< a sequence is a multiple of this
  int64_t rows = 1;     ///< and the sequences of a micro-batch of this
  int64_t widths = 1;   ///< and the widths of model and MLP of this
};

/// Of two techniques that split the same model.
inline SplitParts operator*(const SplitParts& a, const SplitParts& b) {
  return {.heads = a.heads * b.heads,
          .experts = a.experts * b.experts,
          .stream = a.stream * b.stream,
          .pieces = std::lcm(a.pieces, b.pieces),
          .rows = a.rows * b.rows,
          .widths = a.widths * b.widths};
}

}  // namespace caravan
