#include <algorithm>

#include "caravan/base/error.h"
#include "caravan/comm/backends/hierarchical/hierarchical_communicator.h"
#include "caravan/comm/members.h"

namespace caravan::hierarchical {

std::shared_ptr<Communicator> HierarchicalCommunicator::split(std::span<const int> members, std::string name) {
  GroupInfo group = group_.part(members, check_members(members, *this, name), name);
  const uint64_t sequence = take_sequence();
  if (size() > 1) agree_on_split(members, group.name, sequence);
  Levels levels = split_levels(members, group.name);
  return std::make_shared<HierarchicalCommunicator>(engine_, std::move(levels), std::move(group),
                                                    child_lineage(sequence, members.front()));
}

void HierarchicalCommunicator::agree_on_split(std::span<const int> members, const std::string& name,
                                              uint64_t sequence) {
  throw_if_dead();
  const auto operation = std::make_shared<Operation>(split_operation(members, size(), name));
  operation->sequence = sequence;
  Descriptor call = describe(*operation);
  call.verb = kSplitCall;
  operation->flight = &recorder()->log();
  operation->flight_number = record(call);
  counts_.count(call);
  if (levels_.direct() != nullptr) return operation->set_complete();  // the level compares the calls itself
  const auto task = std::make_shared<HierarchicalTask>(levels_, group_, operation, call);
  const std::shared_ptr<Check> check = add_check(*task);
  enqueue(task, false);
  wait(*operation);
  std::vector<std::span<const int64_t>> lists;
  for (const messages::CallSheet& sheet : check->sheets()) lists.push_back(sheet.send_counts());
  check_overlap(find_overlap(lists), group_, name);
}

Levels HierarchicalCommunicator::split_levels(std::span<const int> members, const std::string& name) {
  std::vector<int> hosts;
  for (const int member : members) hosts.push_back(levels_.topology.host[static_cast<size_t>(member)]);
  const auto own = std::ranges::find(members, rank());
  Levels levels{Topology(hosts), static_cast<int>(own - members.begin()), nullptr, nullptr, nullptr};
  std::vector<int> places;
  for (const int peer : levels.local_ranks()) {
    places.push_back(levels_.topology.local_rank[static_cast<size_t>(members[static_cast<size_t>(peer)])]);
  }
  try {
    levels.local = levels_.local->split(places, name);
    if (levels_.global == nullptr) return levels;
    const auto global = levels_.global->split(members, name);
    if (levels.topology.has_one_host()) return levels;
    levels.global = global;
    levels.cross = levels.topology.has_single_ranks()
                       ? global
                       : global->split(levels.topology.cross_ranks(levels.local_rank()), name);
    return levels;
  } catch (const UsageError&) {
    throw;
  } catch (...) {
    Descriptor call;
    call.verb = kSplitCall;
    end(error_of(call, std::current_exception()));
    std::rethrow_exception(first_error());
  }
}

}  // namespace caravan::hierarchical
