#include <algorithm>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "caravan/base/error.h"
#include "caravan/comm/flight/compare.h"

namespace caravan::app {
namespace {

constexpr size_t kMostFindings = 8;  // the first one matters; the others mostly follow from it

std::string text_of(const FlightFinding& finding) {
  return fmt::format("operation {} of \"{}\"\n    {}\n", finding.sequence, finding.group, finding.text);
}

void print_reports(const std::vector<FlightReport>& reports) {
  const FlightReport& first = *std::ranges::min_element(reports, {}, &FlightReport::written_unix_ns);
  fmt::print("job {}: {} ranks over {}, {} reports\n", first.job, first.world_size, first.backend, reports.size());
  for (const FlightReport& report : reports) {
    const std::string by = report.written_by == report.rank ? "" : fmt::format(" by rank {}", report.written_by);
    const auto since_ms = static_cast<double>(report.written_unix_ns - first.written_unix_ns) * 1e-6;
    const uint64_t last = report.entries.empty() ? 0 : report.entries.back().number;
    fmt::print("  rank {} on {}: {} operations, the last {} recorded; written{} {:.0f} ms after the first report\n",
               report.rank, report.host, last, report.entries.size(), by, since_ms);
  }
  fmt::print("first error, on rank {}:\n  {}\n", first.written_by, first.reason);
}

}  // namespace

int inspect_flight(const std::string& folder) {
  const FlightReports found = read_flight_reports(folder);
  print_reports(found.reports);
  const std::vector<FlightFinding> findings = compare_flights(found.reports);
  if (findings.empty()) fmt::print("no divergence\n");
  for (size_t i = 0; i < findings.size() && i < kMostFindings; ++i) {
    fmt::print("{}: {}", i == 0 ? "first divergence" : "also", text_of(findings[i]));
  }
  if (findings.size() > kMostFindings) fmt::print("and {} more\n", findings.size() - kMostFindings);
  if (found.missing.empty()) return 0;
  std::string missing;
  for (const int rank : found.missing) missing += (missing.empty() ? "" : ", ") + flight_file("", rank).string();
  std::fflush(stdout);
  throw DataError({.op = "flight",
                   .subject = folder,
                   .fact = fmt::format("{} of {} reports are missing: {}", found.missing.size(),
                                       found.reports.front().world_size, missing),
                   .where = "",
                   .action = "copy the reports of the other hosts into this folder; a rank that was killed without "
                             "sharing memory with others leaves none"});
}

}  // namespace caravan::app
