#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/comm/flight.h"

namespace caravan {

/// One rank's flight log as a file, `flight-rank<r>.json`.
struct FlightReport {
  std::string job;  ///< equal in all reports of one job, different for others
  int rank = 0;     ///< in the world
  int world_size = 1;
  int written_by = 0;  ///< another rank where this one could not: it was killed, or stands still
  std::string backend;
  std::string host;
  std::string reason;                ///< the error that made `written_by` write it
  int64_t written_ns = 0;            ///< of the clock of the entries
  int64_t written_unix_ns = 0;       ///< the same moment, comparable between hosts as far as their clocks agree
  std::vector<FlightEntry> entries;  ///< oldest first; those before the first were forgotten if its number is above 1

  /// A moment of `entries` on the clock that all hosts share.
  int64_t unix_ns(int64_t entry_ns) const noexcept { return entry_ns - written_ns + written_unix_ns; }
};

/// The report of what `log` holds now, with both clocks and the host's name.
FlightReport flight_report_of(const FlightLog& log, std::string_view reason);

std::string to_json(const FlightReport& report);
/// Throws DataError naming `path` and the place that is wrong.
FlightReport flight_report_from_json(std::string_view text, const std::filesystem::path& path);

std::filesystem::path flight_file(const std::filesystem::path& folder, int rank);
bool is_flight_file(const std::filesystem::path& path);

/// Makes the file appear whole. A report that a rank writes about itself replaces one that another wrote for it, never
/// the other way round. Throws ResourceError.
void write_flight_report(const std::filesystem::path& folder, const FlightReport& report);

/// The reports of one job, as they were found.
struct FlightReports {
  std::vector<FlightReport> reports;  ///< by rank, ascending
  std::vector<int> missing;           ///< ranks of the world without a file
};

/// Reads every `flight-rank<r>.json` of a folder. Throws DataError if there is none, one is damaged, or they are of
/// different jobs.
FlightReports read_flight_reports(const std::filesystem::path& folder);

}  // namespace caravan
