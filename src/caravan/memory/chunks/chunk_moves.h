#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "caravan/memory/chunks/chunk_trace.h"

namespace caravan {

/// Which chunk leaves the device when another needs its place.
enum class ChunkPolicy : uint8_t {
  lru,       ///< the one that was used longest ago
  latest,    ///< the one that is used latest (Belady): needs the moments of use, which the first step records
  recorded,  ///< the same, but counts what an eviction costs: the fetch that follows, and the write-back of contents
             ///< that the host does not have
};
/// "lru", "latest", "recorded"
std::string_view name(ChunkPolicy policy) noexcept;

/// A move is performed before the computation of its moment.
struct ChunkMove {
  enum class Kind : uint8_t {
    fetch,       ///< host to device
    claim,       ///< device memory without contents: they are about to be overwritten
    write_back,  ///< device to host; the device keeps its copy
    drop,        ///< frees the device memory; what must be kept has been written back
  };
  Kind kind = Kind::fetch;
  int moment = 0;
  int chunk = 0;
  bool operator==(const ChunkMove&) const noexcept = default;
};

struct ChunkPlan {
  std::vector<ChunkMove> moves{};  ///< moments ascending; those of the end of the trace have moment num_moments()
  int64_t fetched_bytes = 0;
  int64_t written_bytes = 0;
  int64_t moved_bytes() const noexcept { return fetched_bytes + written_bytes; }
};

/// The moves of a trace under a policy: chunks are fetched when they are used, and leave when there is no room. Throws
/// UsageError for an invalid trace (ChunkTrace::validate).
ChunkPlan plan_moves(const ChunkTrace& trace, ChunkPolicy policy);

/// The same with given decisions: `keeps[u]` says whether the chunk of uses[u] stays on the device until its next use
/// there. Throws UsageError, naming the moment, if it has no room for what is kept.
ChunkPlan plan_moves(const ChunkTrace& trace, const std::vector<bool>& keeps);

/// Fetches at most `distance` moments before the use, where there is room or a drop can make it: copies then run beside
/// computation. The bytes stay the same. A fetch passes neither the write-back of its chunk nor its last use.
ChunkPlan with_prefetch(const ChunkPlan& plan, const ChunkTrace& trace, int distance);

/// Performs a plan symbolically and counts its bytes. Throws InternalError, naming chunk and moment, if a use does not
/// find its contents, contents are lost, or a moment has more on the device than its budget.
void check_moves(const ChunkPlan& plan, const ChunkTrace& trace);

}  // namespace caravan
