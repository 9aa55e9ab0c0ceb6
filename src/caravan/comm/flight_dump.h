#pragma once

#include <filesystem>
#include <functional>

#include "caravan/comm/communicator.h"

namespace caravan {

/// The log of another rank, where this process can read it; null where it cannot.
using FlightLogOf = std::function<const FlightLog*(int rank)>;

/// From here on the first operation that fails on `world`, or on a communicator split from it, leaves a flight report
/// of this rank in `folder` (flight_report.h; `caravan inspect flight` compares them). Where `log_of` gives the logs of
/// other ranks, theirs are written, too, as long as they have not done so themselves: a rank that was killed or stands
/// still cannot. Whatever goes wrong with a report is dropped: it never hides the failure.
///
/// Every rank of `world` calls it, as a collective, with a folder that exists; reports that an earlier job left there
/// are removed. Sends one broadcast of 16 bytes: what tells this job's reports from another's.
void dump_flights_on_failure(Communicator& world, const std::filesystem::path& folder, FlightLogOf log_of = {});

}  // namespace caravan
