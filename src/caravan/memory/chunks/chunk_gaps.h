#pragma once

#include <cstdint>
#include <vector>

#include "caravan/memory/chunks/chunk_trace.h"

namespace caravan {

/// The time between two uses of a chunk on the device, of which the second needs the contents: the one decision there
/// is. The chunk stays, or it leaves and is fetched again.
struct ChunkGap {
  int use = 0;   ///< index of the use before it
  int from = 0;  ///< moments of the uses: the chunk needs no memory at from + 1 .. to - 1 if it leaves
  int to = 0;
  int chunk = 0;
  int64_t fetch_bytes = 0;  ///< what leaving costs
  int version = -1;         ///< the contents, if the host does not have them and need not get them otherwise
};

/// Contents that the device has written and that some gap or the host needs. Leaving in several gaps of one version
/// writes it back once.
struct ChunkGaps {
  std::vector<ChunkGap> gaps{};
  std::vector<int> gap_of_use{};         ///< by use; -1: the chunk need not stay after it
  std::vector<bool> is_needed{};         ///< by use: whether the contents after it are read again, or must be kept
  std::vector<int64_t> version_bytes{};  ///< by version
  int64_t unavoidable_bytes = 0;         ///< first fetches, and what the host must get whatever stays
};

/// Needs a valid trace.
ChunkGaps gaps_of(const ChunkTrace& trace);

}  // namespace caravan
