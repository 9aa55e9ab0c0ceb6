#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "caravan/comm/flight/report.h"

namespace caravan {

/// The operations of one rank that share a sequence of numbers: the collectives of a communicator, or the messages of
/// one pair and direction.
struct FlightLine {
  enum class At : uint8_t { recorded, not_begun, unknown };

  const FlightReport* report = nullptr;  ///< null: there is no record of the rank
  std::map<uint64_t, const FlightEntry*> entries;

  /// Whether the rank called operation `sequence`. Unknown: there is no record, or it no longer has the operation.
  At at(uint64_t sequence) const;
  const FlightEntry* entry(uint64_t sequence) const;
};

/// A communicator as its ranks' records show it.
struct FlightMembers {
  std::string name;
  int size = 0;
  std::vector<FlightLine> collectives;  ///< by rank in the communicator
  /// By sender and receiver: what the former sent and the latter received.
  std::map<std::pair<int, int>, std::pair<FlightLine, FlightLine>> messages;
};

/// Groups the entries of all ranks by communicator. Throws DataError if two records contradict each other.
std::map<uint64_t, FlightMembers> group_flights(std::span<const FlightReport> reports);

/// `rank 2 is in recv fp32 [1] from 0 at a/b.cpp:3, message 4 of "pp", since 3.2 s`: what a
/// rank does while the others wait for it.
std::string doing_instead(const FlightReport& report);

bool is_message(const Descriptor& call) noexcept;

}  // namespace caravan
