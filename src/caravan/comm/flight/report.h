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
  int written_by = 0;  ///< another rank if this one could not, because it was killed or is stopped
  std::string backend;
  std::string host;
  std::string reason;                ///< the error on `written_by`
  int64_t written_ns = 0;            ///< of the clock of the entries
  int64_t written_unix_ns = 0;       ///< the same moment; comparable across hosts as far as their clocks agree
  std::vector<FlightEntry> entries;  ///< oldest first; earlier ones are missing if the first number is above 1

  /// Converts a time in `entries` to Unix time.
  int64_t unix_ns(int64_t entry_ns) const noexcept { return entry_ns - written_ns + written_unix_ns; }
};

/// A report of the current content of `log`, with both clocks and the host name.
FlightReport flight_report_of(const FlightLog& log, std::string_view reason);

std::string to_json(const FlightReport& report);
/// Throws DataError naming `path` and the malformed field.
FlightReport flight_report_from_json(std::string_view text, const std::filesystem::path& path);

std::filesystem::path flight_file(const std::filesystem::path& folder, int rank);
bool is_flight_file(const std::filesystem::path& path);

/// Creates the file atomically. A rank's own report replaces one that another rank wrote for it, but not vice versa.
/// Throws ResourceError.
void write_flight_report(const std::filesystem::path& folder, const FlightReport& report);

/// The reports of a job that were found.
struct FlightReports {
  std::vector<FlightReport> reports;  ///< by rank, ascending
  std::vector<int> missing;           ///< ranks of the world without a file
};

/// Reads every `flight-rank<r>.json` of a folder. Throws DataError if there is none, one is damaged, or they are of
/// different jobs.
FlightReports read_flight_reports(const std::filesystem::path& folder);

}  // namespace caravan
