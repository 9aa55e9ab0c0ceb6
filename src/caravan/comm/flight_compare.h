#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "caravan/comm/flight_report.h"

namespace caravan {

/// Worse first: what ranks called differently explains what others wait for.
enum class Divergence : uint8_t {
  different_calls,  ///< ranks called different things
  not_begun,        ///< some ranks have not called what others have
  not_completed,    ///< all called it, some have no result
};

/// Where the records of one communicator part for the first time.
struct FlightFinding {
  Divergence kind = Divergence::not_completed;
  std::string group;       ///< name of the communicator
  uint64_t sequence = 0;   ///< number of the operation on it, from 0; of a message: on its pair and direction
  int64_t when_ns = 0;     ///< the first rank began it, unix time
  std::vector<int> ranks;  ///< of the world: the smaller side of a difference, or who has not begun or completed
  std::string text;        ///< for people: both sides with their call sites, who did what instead, for how long
};

/// Compares the records of a job's ranks, communicator by communicator: its collectives by their number, and the
/// messages of each pair and direction by theirs. Per communicator the first operation that ranks called differently,
/// else the first that some have not begun, else not completed. Ordered by kind, then time; empty: no divergence. What
/// a record has forgotten, or a rank left no record of, is taken for right.
/// Throws DataError if two records say they are the same rank of one communicator.
std::vector<FlightFinding> compare_flights(std::span<const FlightReport> reports);

}  // namespace caravan
