#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "caravan/module/plan/dim_index.h"
#include "caravan/techniques/context/ring_schedule.h"

namespace caravan {

/// How a ring deals out the tokens of a causal sequence to its n coordinates.
struct RingOrder {
  std::string name;    ///< of `tokens`, for messages
  int64_t pieces = 1;  ///< a sequence is a multiple of n times this
  /// The order in which the tokens are cut into equal parts, one for each coordinate. Throws ShapeError, naming the
  /// nearest lengths, if they cannot be cut.
  std::function<DimIndex(int64_t length, int n)> tokens;
  /// What coordinate `coord`, which has `length` tokens, computes in a turn. In turn 0 it has its own keys, and every
  /// query sees its own.
  std::function<RingPart(int coord, int turn, int n, int64_t length)> part;
};

/// The sequence is 2n chunks, and coordinate k has the chunks k and 2n-1-k. In every turn each coordinate computes half
/// a square of its part. (Grattafiori et al., "The Llama 3 herd of models", 2024, 3.3.2.)
RingOrder zigzag();

// Its pure functions. n = 1: 0, 1, ..
DimIndex zigzag_order(int64_t length, int n);
RingPart zigzag_part(int coord, int turn, int n, int64_t length);

}  // namespace caravan
