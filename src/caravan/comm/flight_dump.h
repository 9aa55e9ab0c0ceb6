#pragma once

#include <filesystem>

#include "caravan/comm/communicator.h"

namespace caravan {

/// From here on the first operation that fails on `world`, or on a communicator split from it, leaves a flight report
/// of this rank in `folder` (flight_report.h; `caravan inspect flight` compares them). The logs of other ranks that
/// this process can read are written, too, unless they have done so themselves: a rank that was killed or stands still
/// cannot. Whatever goes wrong with a report is dropped: it never hides the failure.
///
/// Every rank of `world` calls it, as a collective, with a folder that exists; reports that an earlier job left there
/// are removed. Sends one broadcast of 16 bytes: what tells this job's reports from another's.
void dump_flights_on_failure(Communicator& world, const std::filesystem::path& folder);

}  // namespace caravan
