#pragma once

#include <filesystem>
#include <string>

#include "caravan/comm/communicator.h"
#include "caravan/cost/hardware.h"
#include "caravan/cost/measured_hardware.h"

namespace caravan {

/// What the ranks of a job run on, as far as a measurement depends on it.
struct JobPlace {
  std::string host;     ///< of this rank: equal for ranks of one host, different for others
  int threads = 1;      ///< compute threads of this rank
  std::string choices;  ///< anything else, as the library of matrix products
};

struct JobHardware {
  Hardware hardware{};          ///< on rank 0
  double measured_seconds = 0;  ///< how long the measurement took; 0: it is of the cache
  double age_seconds = 0;       ///< of a measurement from the cache
  /// Of a new one: programs that ran or waited to run on a core, in the minute before, on the busiest host.
  double load_of_core = 0;
};

/// The hardware of a job: each rank of `world` is a device. Every rank calls it, with its own place.
///
/// A measurement that rank 0 finds in the folder `cache` is used for a day, if it is of the same hosts, ranks, threads
/// and choices. Else all hosts are measured at once (measure_hardware), then the links between them, and the cache gets
/// the result. If the folder cannot be written to, the next run measures again.
///
/// Throws UsageError if the ranks of a host are not neighbours, or hosts have different numbers of ranks.
JobHardware job_hardware(Communicator& world, const JobPlace& place, const std::filesystem::path& cache,
                         const MeasureLimits& limits);

}  // namespace caravan
