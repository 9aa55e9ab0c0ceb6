#include <algorithm>

#include "caravan/base/error.h"
#include "caravan/comm/hierarchical/hierarchical_communicator.h"
#include "caravan/comm/members.h"

namespace caravan::hierarchical {

std::shared_ptr<Communicator> HierarchicalCommunicator::split(std::span<const int> members, std::string name) {
  GroupSeat seat;
  seat.rank = check_members(members, *this, name);
  seat.size = static_cast<int>(members.size());
  seat.name = std::move(name);
  for (const int member : members) seat.world_ranks.push_back(seat_.world_ranks[static_cast<size_t>(member)]);
  const uint64_t sequence = take_sequence();
  if (size() > 1) agree_on_split(members, seat.name, sequence);
  Levels levels = split_levels(members, seat.name);
  return std::make_shared<HierarchicalCommunicator>(member_, std::move(levels), std::move(seat),
                                                    child_lineage(sequence, members.front()));
}

void HierarchicalCommunicator::agree_on_split(std::span<const int> members, const std::string& name,
                                              uint64_t sequence) {
  if (error_ != nullptr) std::rethrow_exception(error_);
  const auto operation = std::make_shared<Operation>(split_operation(members, size(), name));
  operation->sequence = sequence;
  Descriptor call = describe(*operation);
  call.verb = kSplitCall;
  operation->flight = &recorder()->log();
  operation->flight_number = record(call);
  calls_made_.count_split();
  if (levels_.direct() != nullptr) return operation->set_complete();  // the level compares the calls itself
  const auto task = std::make_shared<Task>(levels_, seat_, operation, call);
  const std::shared_ptr<Check> check = add_check(*task);
  enqueue(task, false);
  wait(*operation);
  std::vector<std::span<const int64_t>> lists;
  for (const messages::CallSheet& sheet : check->sheets()) lists.push_back(sheet.send_counts());
  check_overlap(find_overlap(lists), seat_, name);
}

Levels HierarchicalCommunicator::split_levels(std::span<const int> members, const std::string& name) {
  std::vector<int> hosts;
  for (const int member : members) hosts.push_back(levels_.topology.host[static_cast<size_t>(member)]);
  const auto own = std::ranges::find(members, rank());
  Levels levels{Topology(hosts), static_cast<int>(own - members.begin()), nullptr, nullptr, nullptr};
  std::vector<int> places;
  for (const int mate : levels.mates()) {
    places.push_back(levels_.topology.place[static_cast<size_t>(members[static_cast<size_t>(mate)])]);
  }
  try {
    levels.inner = levels_.inner->split(places, name);
    if (levels_.everyone == nullptr) return levels;
    const auto everyone = levels_.everyone->split(members, name);
    if (levels.topology.has_one_host()) return levels;
    levels.everyone = everyone;
    levels.cross =
        levels.topology.has_single_ranks() ? everyone : everyone->split(levels.topology.level(levels.place()), name);
    return levels;
  } catch (const UsageError&) {
    throw;
  } catch (...) {
    Descriptor call;
    call.verb = kSplitCall;
    fail(error_of(call, std::current_exception()));
    std::rethrow_exception(error_);
  }
}

}  // namespace caravan::hierarchical
