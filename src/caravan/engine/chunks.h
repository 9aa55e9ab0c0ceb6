#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "caravan/memory/chunks/chunk_moves.h"
#include "caravan/schedule/schedule.h"

namespace caravan {

class Mesh;
struct Strategy;

/// Parameters in chunks of one size: consecutive parameters in forward order, which are fetched, gathered, reduced and
/// freed together (techniques/chunks/chunks.h). A rank has an equal part of each, its chunk. On the device chunks have
/// slots, all of one size.
struct ParameterChunks {
  int64_t bytes = 0;     ///< of a chunk of one rank, in compute_dtype; 0: the size that wastes least
  bool is_used = false;  ///< false: the parameters of a unit are gathered together
  ChunkPolicy policy = ChunkPolicy::recorded;
  int64_t device_bytes = 0;  ///< for slots; 0: the least

  // What lay_out_chunks() finds:
  int64_t elems = 0;  ///< of a chunk of one rank; 0: not laid out yet
  int64_t slot_bytes = 0;
  int num_parts = 1;  ///< ranks that have a part of each parameter
  int num_chunks = 0;
  std::map<std::string, int> chunk_of{};  ///< by parameter; one that stages of several ranks use is in none

  /// Elements of a whole chunk, of all ranks.
  int64_t whole_elems() const noexcept { return elems * num_parts; }
  /// The number of slots during a table with gathers: what device_bytes hold, or the least.
  int slots(const Schedule& table, const Units& units, int prefetch) const;
};

/// Puts the parameters of a strategy into chunks that `num_parts` ranks cut; no-op without chunks, or if they are laid
/// out. The same on every rank. `even`: the strategy with the layouts that the parameters will have, but for sizes.
/// Throws UsageError, naming the parameter, for one that is too large for a chunk.
void lay_out_chunks(Strategy& strategy, const Strategy& even, const Mesh& mesh, int num_parts);

}  // namespace caravan
