#pragma once

#include <cstdint>
#include <vector>

#include "caravan/base/memory/tier.h"

namespace caravan {

/// What a use does with the contents of a chunk.
enum class ChunkAccess : uint8_t {
  read,
  modify,     ///< reads and changes them
  overwrite,  ///< writes all of them and reads nothing: the old ones need not be fetched
  consume,    ///< reads them for the last time: they need not be kept
};

struct ChunkUse {
  int moment = 0;
  int chunk = 0;
  ChunkAccess access = ChunkAccess::read;
  bool is_on_host = false;  ///< the computation runs there; else on the device
  bool operator==(const ChunkUse&) const noexcept = default;
};

/// The uses of chunks in a step, or in several, as the first step records them or a table of actions implies them. A
/// moment is the time between two changes of what must be on the device: an event of a schedule.
///
/// Host memory has room for every chunk. At the beginning all contents are there; at the end they must be again.
struct ChunkTrace {
  std::vector<int64_t> chunk_bytes{};  ///< by chunk
  /// By moment: device memory for chunks. It varies: what is not in chunks (activations) leaves more or less.
  std::vector<int64_t> budget_bytes{};
  std::vector<ChunkUse> uses{};  ///< moments ascending; a chunk at most once a moment

  int num_moments() const noexcept { return static_cast<int>(budget_bytes.size()); }
  /// Bytes of the chunks that each moment uses on the device: the least that its budget can be.
  std::vector<int64_t> used_bytes() const;
  /// Throws UsageError: naming moment, bytes and budget if the uses of a moment exceed it; naming chunk and moment if
  /// uses are out of order, or read what has been consumed.
  void validate() const;
};

}  // namespace caravan
