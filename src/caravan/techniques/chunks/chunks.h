#pragma once

#include <cstdint>

#include "caravan/engine/strategy.h"

namespace caravan {

/// Offloaded parameters in chunks of one size instead of by unit. (Fang et al., "PatrickStar", arXiv 2108.05818.)
///
/// A chunk has consecutive parameters in forward order; over data-parallel ranks that shard parameters, a rank has an
/// equal part of it. All parts have one size, so that memory for them does not fragment. On the device a part stays in
/// its slot between uses while there is room: what is loaded a second time depends on the room and the policy. Bytes
/// over the link in a step: at least one load of each chunk, at most two for each micro-batch.
struct ChunkOptions {
  int64_t bytes = 0;  ///< of a part, in the dtype of the arithmetic; 0: the size that wastes least
  ChunkPolicy policy = ChunkPolicy::recorded;
  int64_t device_bytes = 0;  ///< room for parts on the device; 0: the least
};

/// Adds it to a strategy, before data parallelism. Its parameters must be offloaded (add_offload).
void add_chunks(Strategy& strategy, const ChunkOptions& options);

}  // namespace caravan
