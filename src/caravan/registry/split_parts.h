#pragma once

#include <cstdint>
#include <numeric>

namespace caravan {

/// The number of parts into which splits of layers or sequences cut each quantity of a model.
struct SplitParts {
  int64_t heads = 1;    ///< of attention
  int64_t experts = 1;  ///< of a layer
  int64_t stream = 1;   ///< a sequence of the residual stream
  int64_t pieces = 1;   ///< the length of a sequence is a multiple of this
  int64_t rows = 1;     ///< the number of sequences in a micro-batch is a multiple of this
  int64_t widths = 1;   ///< the widths of model and MLP are multiples of this
};

/// The parts of two techniques that split the same model.
inline SplitParts operator*(const SplitParts& a, const SplitParts& b) {
  return {.heads = a.heads * b.heads,
          .experts = a.experts * b.experts,
          .stream = a.stream * b.stream,
          .pieces = std::lcm(a.pieces, b.pieces),
          .rows = a.rows * b.rows,
          .widths = a.widths * b.widths};
}

}  // namespace caravan
