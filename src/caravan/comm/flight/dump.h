#pragma once

#include <filesystem>

#include "caravan/comm/communicator.h"

namespace caravan {

/// From now on, the first operation that fails on `world` or on a communicator split from it writes a flight report of
/// this rank to `folder` (report.h; `caravan inspect flight` compares them). It also writes the logs of other ranks
/// that this process can read and that have no report yet, because a rank that was killed or is stopped cannot. Errors
/// while writing a report are ignored, so that they do not hide the failure.
///
/// A collective: every rank of `world` calls it, with an existing folder. Removes reports of earlier jobs. Sends one
/// broadcast of 16 bytes, an id that distinguishes the reports of this job.
void dump_flights_on_failure(Communicator& world, const std::filesystem::path& folder);

}  // namespace caravan
