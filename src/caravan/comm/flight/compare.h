#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "caravan/comm/flight/report.h"

namespace caravan {

/// Most serious first: different calls explain why other ranks wait.
enum class Divergence : uint8_t {
  different_calls,  ///< ranks made different calls
  not_begun,        ///< some ranks have not made a call that others have
  not_completed,    ///< all ranks made the call, but on some it is not complete
};

/// The first divergence between the records of a communicator's ranks.
struct FlightFinding {
  Divergence kind = Divergence::not_completed;
  std::string group;       ///< name of the communicator
  uint64_t sequence = 0;   ///< of the operation, from 0; of a message: within its pair and direction
  int64_t when_ns = 0;     ///< when the first rank began it, Unix time
  std::vector<int> ranks;  ///< of the world: the minority, or those that have not begun or completed it
  std::string text;  ///< a description: both sides with their call sites, what other ranks did instead, for how long
};

/// Compares the records of a job's ranks for each communicator: its collectives by sequence number, and the messages of
/// each pair and direction by theirs. Finds, for each communicator, the first operation that ranks called differently,
/// otherwise the first that some have not begun, otherwise not completed. Sorted by kind, then time; empty if the ranks
/// agree. Operations that a record no longer has, and ranks without a record, are assumed to agree.
/// Throws DataError if two records claim the same rank of a communicator.
std::vector<FlightFinding> compare_flights(std::span<const FlightReport> reports);

}  // namespace caravan
