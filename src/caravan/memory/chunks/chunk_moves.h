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

/// Fetches at most `distance` moments before the use, where there is room: copies then run beside computation. The
/// bytes stay the same. A fetch passes neither the write-back of the same chunk nor its last use.
ChunkPlan with_prefetch(const ChunkPlan& plan, const ChunkTrace& trace, int distance);

/// The moves of a step that is repeated without end. Steps 0, 1 .. lead to one that begins and ends with the same
/// chunks on the device; from then on the steps from `repeats_from` follow each other.
struct RepeatedPlan {
  std::vector<ChunkPlan> steps{};  ///< moments count from the beginning of each step
  size_t repeats_from = 0;
  bool is_emptied = false;  ///< no state came back: all steps repeat, and the last one empties the device at its end
  /// The plan of step `index`.
  const ChunkPlan& step(size_t index) const;
};

/// The plan of an endless repetition, with fetches at most `prefetch` moments ahead (with_prefetch). If no state of the
/// device comes back within `most_steps` steps, the device is emptied after them. Throws UsageError for an invalid
/// trace.
RepeatedPlan repeat_moves(const ChunkTrace& step, ChunkPolicy policy, int prefetch = 0, int most_steps = 8);

/// Performs a plan symbolically and counts its bytes. Throws InternalError, naming chunk and moment, if a use does not
/// find its contents, contents are lost, or a moment has more on the device than its budget.
void check_moves(const ChunkPlan& plan, const ChunkTrace& trace);

}  // namespace caravan
