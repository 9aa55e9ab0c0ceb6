#include "tests/comm/flight/flight_files.h"

#include <algorithm>

namespace caravan::testing {

FlightJob::FlightJob(int world_size, const std::string& job) : reports(static_cast<size_t>(world_size)) {
  for (int rank = 0; rank < world_size; ++rank) {
    FlightReport& report = reports[static_cast<size_t>(rank)];
    report.job = job;
    report.rank = report.written_by = rank;
    report.world_size = world_size;
    report.backend = "shm";
    report.host = "host";
    report.reason = "the reason of rank " + std::to_string(rank);
    report.written_ns = 10'000'000'000;
    report.written_unix_ns = 1'800'000'000'000'000'000;
  }
}

FlightJob::Group FlightJob::world() const {
  Group group{0, "world", {}};
  for (const FlightReport& report : reports) group.ranks.push_back(report.rank);
  return group;
}

void FlightJob::add(int rank, const Group& group, uint64_t sequence, const Op& op) {
  FlightReport& report = reports[static_cast<size_t>(rank)];
  FlightEntry entry;
  entry.number = report.entries.empty() ? 1 : report.entries.back().number + 1;
  entry.group.identity = group.identity;
  group.name.copy(entry.group.name.data(), entry.group.name.size() - 1);
  entry.group.size = static_cast<int>(group.ranks.size());
  entry.group.rank = static_cast<int>(std::ranges::find(group.ranks, rank) - group.ranks.begin());
  entry.call.verb = static_cast<uint8_t>(op.verb);
  entry.call.dtype = static_cast<uint8_t>(op.dtype);
  entry.call.count = op.count;
  entry.call.root = op.root;
  entry.call.sequence = sequence;
  entry.call.line = op.line;
  op.what.copy(entry.call.what.data(), entry.call.what.size() - 1);
  std::string("techniques/data/ddp.cpp").copy(entry.call.file.data(), entry.call.file.size() - 1);
  entry.begin_ns = int64_t{op.begin_ms} * 1'000'000;
  entry.end_ns = op.state == FlightState::started ? 0 : entry.begin_ns + 1'000'000;
  entry.state = op.state;
  report.entries.push_back(entry);
}

void FlightJob::add_all(const Group& group, uint64_t sequence, const Op& op) {
  for (const int rank : group.ranks) add(rank, group, sequence, op);
}

}  // namespace caravan::testing
