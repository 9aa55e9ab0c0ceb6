#include "caravan/comm/flight/report.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <unistd.h>

#include <climits>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/file.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "flight-rank";
constexpr std::string_view kSuffix = ".json";

template <class Clock>
int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

/// The rank in `flight-rank<r>.json`, -1 for any other name.
int rank_of(const std::string& file_name) {
  if (!file_name.starts_with(kPrefix) || !file_name.ends_with(kSuffix)) return -1;
  const char* begin = file_name.data() + kPrefix.size();
  const char* end = file_name.data() + file_name.size() - kSuffix.size();
  int rank = -1;
  const auto [stop, error] = std::from_chars(begin, end, rank);
  return error == std::errc{} && stop == end ? rank : -1;
}

DataError refusal(const fs::path& path, std::string fact, std::string action) {
  return DataError(
      {.op = "flight", .subject = path.string(), .fact = std::move(fact), .where = "", .action = std::move(action)});
}

/// Creates `path` with `text` unless it exists.
void write_if_absent(const fs::path& path, const std::string& text) {
  const fs::path aside = name_aside(path);
  OutputFile file(aside, "flight");
  file.append(text);
  file.finish();
  const int failure = ::link(aside.c_str(), path.c_str()) == 0 ? 0 : errno;
  ::unlink(aside.c_str());
  if (failure != 0 && failure != EEXIST) throw_file_error("flight", path, "cannot be written", failure);
}

void require_one_job(const fs::path& folder, const std::vector<FlightReport>& reports) {
  const FlightReport& first = reports.front();
  for (const FlightReport& other : reports) {
    if (other.job == first.job && other.world_size == first.world_size) continue;
    throw refusal(folder,
                  fmt::format("holds reports of different jobs: rank {} is of job \"{}\" ({} ranks), rank {} of job "
                              "\"{}\" ({} ranks)",
                              first.rank, first.job, first.world_size, other.rank, other.job, other.world_size),
                  "keep the files of one job, or remove all and run again");
  }
}

}  // namespace

FlightReport flight_report_of(const FlightLog& log, std::string_view reason) {
  FlightReport report;
  report.entries = log.entries();
  report.written_ns = now_ns<std::chrono::steady_clock>();
  report.written_unix_ns = now_ns<std::chrono::system_clock>();
  report.reason = reason;
  char host[HOST_NAME_MAX + 1] = {};
  if (gethostname(host, sizeof(host) - 1) == 0) report.host = host;
  return report;
}

fs::path flight_file(const fs::path& folder, int rank) {
  return folder / fmt::format("{}{}{}", kPrefix, rank, kSuffix);
}

bool is_flight_file(const fs::path& path) { return rank_of(path.filename().string()) >= 0; }

void write_flight_report(const fs::path& folder, const FlightReport& report) {
  const fs::path path = flight_file(folder, report.rank);
  if (report.written_by == report.rank) {
    write_file_durably(path, to_json(report), "flight");
  } else {
    write_if_absent(path, to_json(report));
  }
}

FlightReports read_flight_reports(const fs::path& folder) {
  std::error_code error;
  fs::directory_iterator files(folder, error);
  if (error) throw refusal(folder, "cannot be read: " + error.message(), "name the run folder of the job that failed");
  FlightReports found;
  for (const fs::directory_entry& file : files) {
    const int rank = rank_of(file.path().filename().string());
    if (rank < 0) continue;
    found.reports.push_back(flight_report_from_json(MappedFile(file.path(), "flight").text(), file.path()));
    if (found.reports.back().rank == rank) continue;
    throw refusal(file.path(), fmt::format("is the report of rank {}", found.reports.back().rank),
                  "give it its own name back");
  }
  if (found.reports.empty()) {
    throw refusal(folder, "holds no flight-rank<r>.json", "name the run folder of a job that failed");
  }
  std::ranges::sort(found.reports, {}, &FlightReport::rank);
  require_one_job(folder, found.reports);
  for (int rank = 0; rank < found.reports.front().world_size; ++rank) {
    if (std::ranges::find(found.reports, rank, &FlightReport::rank) == found.reports.end()) {
      found.missing.push_back(rank);
    }
  }
  return found;
}

}  // namespace caravan
