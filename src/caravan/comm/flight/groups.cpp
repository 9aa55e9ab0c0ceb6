#include "caravan/comm/flight/groups.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

bool has_forgotten(const FlightReport& report) { return !report.entries.empty() && report.entries.front().number > 1; }

[[noreturn]] void refuse(const FlightGroup& group, const FlightReport& a, const FlightReport& b, std::string fact) {
  throw DataError({.op = "flight",
                   .subject = fmt::format("communicator \"{}\"", group.name.data()),
                   .fact = std::move(fact),
                   .where = fmt::format("records of ranks {} and {}", a.rank, b.rank),
                   .action = "these are not the files of one job: remove them and run again"});
}

void add(FlightMembers& members, const FlightReport& report, const FlightEntry& entry) {
  const FlightGroup& group = entry.group;
  if (members.size == 0) {
    members.name = group.name.data();
    members.size = group.size;
    members.collectives.resize(static_cast<size_t>(group.size));
  }
  FlightLine& own = members.collectives[static_cast<size_t>(std::min(group.rank, members.size - 1))];
  if (group.size != members.size) {
    refuse(group, report, report,
           fmt::format("has {} ranks in one record and {} in another", members.size, group.size));
  }
  if (own.report != nullptr && own.report != &report) {
    refuse(group, *own.report, report, fmt::format("both say they are its rank {}", group.rank));
  }
  own.report = &report;
  if (!is_message(entry.call)) {
    own.entries[entry.call.sequence] = &entry;
    return;
  }
  const bool sends = entry.call.verb == static_cast<uint8_t>(Verb::send);
  auto& pair =
      members.messages[sends ? std::pair(group.rank, entry.call.root) : std::pair(entry.call.root, group.rank)];
  (sends ? pair.first : pair.second).entries[entry.call.sequence] = &entry;
}

using Groups = std::map<uint64_t, FlightMembers>;

/// A rank that made no call on a communicator has no record of being a member. In a communicator of all ranks it must
/// be one. Communicators of the same name are the parts of a split, so a rank in none of the others belongs to this
/// one. If neither settles it, the member stays unknown.
void place_silent_ranks(Groups& groups, FlightMembers& members, std::span<const FlightReport> reports) {
  const auto is_in_a_part = [&](const FlightReport& report) {
    return std::ranges::any_of(groups, [&](const auto& group) {
      return group.second.name == members.name &&
             std::ranges::any_of(group.second.collectives,
                                 [&](const FlightLine& line) { return line.report == &report; });
    });
  };
  std::vector<const FlightReport*> silent;
  for (const FlightReport& report : reports) {
    if (!is_in_a_part(report)) silent.push_back(&report);
  }
  std::vector<FlightLine*> empty;
  for (FlightLine& line : members.collectives) {
    if (line.report == nullptr) empty.push_back(&line);
  }
  const bool all_are_here = static_cast<int>(reports.size()) == reports.front().world_size;
  if (members.size == reports.front().world_size) {
    for (const FlightReport* report : silent) members.collectives[static_cast<size_t>(report->rank)].report = report;
  } else if (all_are_here && silent.size() == empty.size()) {
    for (size_t i = 0; i < empty.size(); ++i) empty[i]->report = silent[i];
  }
}

}  // namespace

bool is_message(const Descriptor& call) noexcept {
  return call.verb == static_cast<uint8_t>(Verb::send) || call.verb == static_cast<uint8_t>(Verb::recv);
}

FlightLine::At FlightLine::at(uint64_t sequence) const {
  if (entries.contains(sequence)) return At::recorded;
  if (report == nullptr) return At::unknown;
  if (entries.empty()) return has_forgotten(*report) ? At::unknown : At::not_begun;
  return sequence > entries.rbegin()->first ? At::not_begun : At::unknown;
}

const FlightEntry* FlightLine::entry(uint64_t sequence) const {
  const auto found = entries.find(sequence);
  return found == entries.end() ? nullptr : found->second;
}

std::map<uint64_t, FlightMembers> group_flights(std::span<const FlightReport> reports) {
  std::map<uint64_t, FlightMembers> groups;
  for (const FlightReport& report : reports) {
    for (const FlightEntry& entry : report.entries) add(groups[entry.group.identity], report, entry);
  }
  for (auto& [identity, members] : groups) {
    place_silent_ranks(groups, members, reports);
    for (auto& [pair, sides] : members.messages) {
      sides.first.report = members.collectives[static_cast<size_t>(pair.first)].report;
      sides.second.report = members.collectives[static_cast<size_t>(pair.second)].report;
    }
  }
  return groups;
}

std::string doing_instead(const FlightReport& report) {
  const std::string who = fmt::format("rank {}", report.rank);
  if (report.entries.empty()) return who + " has called nothing";
  const auto is_open = [](const FlightEntry& entry) { return entry.state != FlightState::done; };
  const auto open = std::ranges::find_if(report.entries, is_open);
  const FlightEntry& entry = open != report.entries.end() ? *open : report.entries.back();
  const std::string call =
      fmt::format("{}, {} {} of \"{}\"", to_string(entry.call), is_message(entry.call) ? "message" : "operation",
                  entry.call.sequence, entry.group.name.data());
  const double seconds =
      static_cast<double>(report.written_ns - (entry.end_ns == 0 ? entry.begin_ns : entry.end_ns)) * 1e-9;
  switch (entry.state) {
    case FlightState::started: return fmt::format("{} is in {}, since {:.1f} s", who, call, seconds);
    case FlightState::failed: return fmt::format("{} failed in {}", who, call);
    default: return fmt::format("{} came back from {}, and has called nothing for {:.1f} s", who, call, seconds);
  }
}

}  // namespace caravan
