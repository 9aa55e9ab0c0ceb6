#pragma once

#include <cstdint>
#include <vector>

#include "caravan/memory/chunks/chunk_moves.h"
#include "caravan/schedule/schedule.h"

namespace caravan {

/// Where chunks are during a table.
struct ChunkRoom {
  int slots = 0;  ///< chunks that the device has room for
  ChunkPolicy policy = ChunkPolicy::recorded;
  int prefetch = 1;  ///< number of events by which a fetch may precede the use
};

/// The uses of slots in a table with gathers. A moment is an event with the actions before it; what follows the last
/// event is one more, in which the host has the chunks. A chunk that is cut over ranks needs its slot when it is
/// gathered; a whole one, until it is freed. Chunks count 1 byte each, in the order of their groups.
ChunkTrace chunk_trace(const Schedule& table, const Units& units, int slots);

/// The slots that the table needs so that each fetch can be `prefetch` events ahead; 0 for no chunks.
int least_slots(const Schedule& table, const Units& units, int prefetch);

/// Adds the fetches of chunks into slots, and the evictions from them. Slots are empty before and after the table,
/// since the host changes the chunks in the update. Throws UsageError, naming the event, if it uses more chunks than
/// there are slots.
Schedule with_chunk_moves(const Schedule& table, const Units& units, const ChunkRoom& room);

/// Loads of chunks in a table.
struct ChunkLoads {
  ChunkPolicy policy = ChunkPolicy::recorded;
  std::vector<int> groups{};  ///< by load
};
/// What each policy would load in a table with gathers; its moves of chunks are left out.
struct ChunkComparison {
  std::vector<ChunkLoads> policies{};
  int64_t least = 0;  ///< no order loads fewer
};
ChunkComparison compare_chunk_orders(const Schedule& table, const Units& units, int slots);

}  // namespace caravan
