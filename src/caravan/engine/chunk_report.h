#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace caravan {

class Engine;

/// What chunks of one rank take and load, for the plan of a run.
struct ChunkReport {
  int64_t chunk_bytes = 0;
  int num_chunks = 0;  ///< that its units use
  double waste = 0;    ///< part of them that holds no parameter, 0 to 1
  int slots = 0;
  int needed_slots = 0;  ///< without any that is fetched ahead
  int num_micro_batches = 1;
  struct Loads {
    std::string policy;
    int64_t chunks = 0;
    int64_t bytes = 0;
  };
  std::vector<Loads> policies{};  ///< of a step; the chosen one first
  int64_t least = 0;              ///< no order loads fewer chunks
  int64_t room_bytes() const noexcept { return chunk_bytes * slots; }
  bool is_used() const noexcept { return num_chunks > 0; }
};

/// The report of a step of so many micro-batches. Every rank calls it.
ChunkReport chunk_report(Engine& engine, int num_micro_batches);

}  // namespace caravan
