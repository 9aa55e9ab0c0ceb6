#include "caravan/comm/flight/dump.h"

#include <system_error>
#include <vector>

#include "caravan/comm/flight/report.h"
#include "caravan/comm/store/secret/secret.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

/// The state from before the failure.
struct Dump {
  fs::path folder;
  FlightReport head;
  std::vector<const FlightLog*> logs;  // by rank; kept alive by the recorder, whose handler this is

  void write(const FlightLog& log, int rank, std::string_view reason) const {
    FlightReport report = flight_report_of(log, reason);
    report.job = head.job;
    report.rank = rank;
    report.written_by = head.rank;
    report.world_size = head.world_size;
    report.backend = head.backend;
    write_flight_report(folder, report);
  }

  void write_all(std::string_view reason) const {
    write(*logs[static_cast<size_t>(head.rank)], head.rank, reason);
    for (int rank = 0; rank < head.world_size; ++rank) {
      const FlightLog* log = logs[static_cast<size_t>(rank)];
      if (log != nullptr && rank != head.rank) write(*log, rank, reason);
    }
  }
};

void remove_reports(const fs::path& folder) {
  std::error_code ignored;
  for (const fs::directory_entry& file : fs::directory_iterator(folder, ignored)) {
    if (is_flight_file(file.path())) fs::remove(file.path(), ignored);
  }
}

}  // namespace

void dump_flights_on_failure(Communicator& world, const fs::path& folder) {
  FlightReport head;
  head.job = store_secret::random_hex(8);
  head.rank = world.rank();
  head.world_size = world.size();
  head.backend = world.backend();
  if (head.rank == 0) remove_reports(folder);  // before any rank can write one
  world.broadcast({head.job.data(), static_cast<int64_t>(head.job.size()), Dtype::uint8, {}}, 0, "flight reports");
  Dump dump{folder, std::move(head), {}};
  for (int rank = 0; rank < world.size(); ++rank) dump.logs.push_back(world.flight_of(rank));
  world.recorder()->on_failure([dump = std::move(dump)](std::string_view reason) { dump.write_all(reason); });
}

}  // namespace caravan
