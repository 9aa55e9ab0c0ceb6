#pragma once

#include <array>
#include <cstdint>

#include "caravan/comm/types.h"

namespace caravan {

/// What one rank has sent through a communicator. Bytes are those of the ring (all_reduce, all_gather, reduce_scatter),
/// direct (all_to_all, send) and chain (broadcast, reduce) algorithms, whatever the back-end does: equal in every
/// back-end (see wire_bytes).
struct Traffic {
  /// Calls of a communicator of size 1 are counted, with no bytes.
  std::array<int64_t, kNumVerbs> calls{};
  std::array<int64_t, kNumVerbs> bytes{};
  double wait_ms = 0;  ///< time spent in waits; over shared memory only those that outlasted the first spins

  int64_t total_calls() const noexcept;
  int64_t total_bytes() const noexcept;
};

/// Bytes that rank `rank` of `size` sends in one call. `input_bytes` is the size of its input; for all_to_all and
/// reduce_scatter `own_bytes` is the part of it that stays on this rank.
int64_t wire_bytes(Verb verb, int rank, int size, int64_t input_bytes, int64_t own_bytes, int root) noexcept;

}  // namespace caravan
