#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/schedule/schedule.h"

namespace caravan {
namespace {

void check_micro_batches(const char* op, int num_micro_batches) {
  if (num_micro_batches >= 1) return;
  throw UsageError({.op = "table",
                    .subject = op,
                    .fact = fmt::format("{} micro-batches", num_micro_batches),
                    .action = "use 1 or more"});
}

/// `table` with `before[i]` inserted before entry i and `after[i]` after it.
Schedule insert_around(const Schedule& table, const std::vector<Schedule>& before, const std::vector<Schedule>& after) {
  Schedule result;
  for (size_t i = 0; i < table.size(); ++i) {
    result.insert(result.end(), before[i].begin(), before[i].end());
    result.push_back(table[i]);
    result.insert(result.end(), after[i].begin(), after[i].end());
  }
  return result;
}

/// Entries first..last during which the unsharded parameters of a group exist.
struct Stay {
  size_t first;
  size_t last;
  int group;
};

/// `num_events[i]`: the number of events before entry i. Sorted by first entry, then by group.
std::vector<Stay> stays_of(const Schedule& table, const Units& units, const GatherOptions& options,
                           const std::vector<size_t>& num_events) {
  std::vector<Stay> stays;
  std::map<int, size_t> now;  // the latest range of each group
  for (size_t i = 0; i < table.size(); ++i) {
    std::vector<int> used;
    if (table[i].is_event()) used = units.groups_of(table[i]);
    if (table[i].kind == Action::Kind::reduce) used = {table[i].unit};
    for (const int group : used) {
      if (!units.groups.at(group).is_gathered || units.groups[group].is_joint) continue;
      const auto found = now.find(group);
      if (found != now.end()) {
        Stay& stay = stays[found->second];
        const size_t gap = num_events[i] - num_events[stay.last + 1];
        if (!options.free_after_forward || gap <= static_cast<size_t>(options.prefetch)) {
          stay.last = i;
          continue;
        }
      }
      now[group] = stays.size();
      stays.push_back({i, i, group});
    }
  }
  return stays;
}

/// Adds gathers of joint groups at the front, frees at the end.
void add_joint_gathers(Schedule& table, const Units& units) {
  std::set<int> used;
  for (const Action& entry : table) {
    if (!entry.is_event()) continue;
    for (const int group : units.groups_of(entry)) {
      if (units.groups[group].is_joint && units.groups[group].is_gathered) used.insert(group);
    }
  }
  Schedule gathers;
  for (const int group : used) {
    gathers.push_back({.kind = Action::Kind::gather, .unit = group});
    table.push_back({.kind = Action::Kind::free, .unit = group});
  }
  table.insert(table.begin(), gathers.begin(), gathers.end());
}

/// Reorders receives so that those from each rank are in the order of its sends.
void receive_in_order(std::vector<Schedule>& tables, const Units& units, std::span<const int> rank_of_stage) {
  const auto rank_of = [&](int stage) { return rank_of_stage.empty() ? stage : rank_of_stage[stage]; };
  struct Route {
    Schedule sent;                                    // written as the matching receives
    std::map<std::tuple<int, int, bool>, size_t> at;  // position in `sent`, by unit, micro-batch and whether it is a
                                                      // gradient
    size_t num_received = 0;
  };
  const auto key = [](const Action& entry) { return std::tuple(entry.unit, entry.micro_batch, entry.is_gradient); };
  std::map<std::pair<int, int>, Route> routes;  // by sender and receiver
  for (const Schedule& table : tables) {
    for (const Action& entry : table) {
      if (entry.kind != Action::Kind::send) continue;
      Action recv = entry;
      recv.kind = Action::Kind::recv;
      recv.peer = entry.is_gradient ? units.units[entry.unit].stage : entry.peer - 1;
      Route& route = routes[{rank_of(recv.peer), rank_of(entry.peer)}];
      route.at.emplace(key(recv), route.sent.size());
      route.sent.push_back(recv);
    }
  }
  for (size_t rank = 0; rank < tables.size(); ++rank) {
    Schedule table;
    for (const Action& entry : tables[rank]) {
      if (entry.kind != Action::Kind::recv) {
        table.push_back(entry);
        continue;
      }
      Route& route = routes[{rank_of(entry.peer), static_cast<int>(rank)}];
      const auto found = route.at.find(key(entry));
      if (found == route.at.end()) {
        table.push_back(entry);  // check() reports it
        continue;
      }
      for (; route.num_received <= found->second; ++route.num_received) table.push_back(route.sent[route.num_received]);
    }
    tables[rank] = std::move(table);
  }
}

}  // namespace

PassOrder accumulate(int num_micro_batches, int stage) {
  check_micro_batches("accumulate", num_micro_batches);
  PassOrder order;
  for (int m = 0; m < num_micro_batches; ++m) {
    order.push_back({Pass::Kind::forward, m, stage});
    order.push_back({Pass::Kind::backward, m, stage});
  }
  return order;
}

PassOrder forward_only(int num_micro_batches, int stage) {
  check_micro_batches("forward_only", num_micro_batches);
  PassOrder order;
  for (int m = 0; m < num_micro_batches; ++m) order.push_back({Pass::Kind::forward, m, stage});
  return order;
}

Schedule expand(const PassOrder& order, const Units& units, std::span<const int> rank_of_stage) {
  units.validate();
  const int num_stages = units.num_stages();
  if (!rank_of_stage.empty() && static_cast<int>(rank_of_stage.size()) != num_stages) {
    throw UsageError({.op = "table",
                      .subject = "expand",
                      .fact = fmt::format("ranks of {} stages for {} stages", rank_of_stage.size(), num_stages)});
  }
  const auto rank_of = [&](int stage) { return rank_of_stage.empty() ? stage : rank_of_stage[stage]; };
  Schedule table;
  for (const Pass& pass : order) {
    const Schedule events = events_of(pass, units);
    if (rank_of(pass.stage) != rank_of(order.front().stage)) {
      throw UsageError(
          {.op = "table",
           .subject = "expand",
           .fact = fmt::format("the order has passes of stages {} and {}, which are on ranks {} and {}",
                               order.front().stage, pass.stage, rank_of(order.front().stage), rank_of(pass.stage)),
           .action = "give each rank its order, or set rank_of_stage"});
    }
    const bool backward = pass.kind == Pass::Kind::backward;
    // The input of the pass comes from stage `from`; its output goes to stage `to`.
    const int from = pass.stage + (backward ? 1 : -1);
    const int to = pass.stage + (backward ? -1 : 1);
    const auto crosses = [&](int other) {
      const bool moves = pass.kind == Pass::Kind::forward || backward;
      return moves && !events.empty() && other >= 0 && other < num_stages && rank_of(other) != rank_of(pass.stage) &&
             (!backward || other > pass.stage || units.has_backward(other));
    };
    const auto crossing = [&](Action::Kind kind, int other) {
      return Action{kind, units.first_unit(std::max(pass.stage, other)), pass.micro_batch, other, backward};
    };
    if (crosses(from)) table.push_back(crossing(Action::Kind::recv, from));
    table.insert(table.end(), events.begin(), events.end());
    if (crosses(to)) table.push_back(crossing(Action::Kind::send, to));
  }
  return table;
}

std::vector<Schedule> expand(std::span<const PassOrder> orders, const Units& units,
                             std::span<const int> rank_of_stage) {
  std::vector<Schedule> tables;
  for (size_t rank = 0; rank < orders.size(); ++rank) {
    tables.push_back(expand(orders[rank], units, rank_of_stage));
  }
  receive_in_order(tables, units, rank_of_stage);
  return tables;
}

Schedule with_gathers(const Schedule& table, const Units& units, const GatherOptions& options) {
  std::vector<size_t> num_events{0};  // before entry i
  std::vector<size_t> events;         // their positions
  for (size_t i = 0; i < table.size(); ++i) {
    if (table[i].is_event()) events.push_back(i);
    num_events.push_back(events.size());
  }
  std::vector<Schedule> before(table.size());
  std::vector<Schedule> after(table.size());
  const size_t prefetch = std::max(options.prefetch, 0);
  size_t previous = 0;  // gathers keep their order
  for (const Stay& stay : stays_of(table, units, options, num_events)) {
    size_t at = stay.first;
    if (prefetch > 0 && !events.empty()) {
      const size_t event = num_events[stay.first];
      at = std::min(at, events.at(event > prefetch ? event - prefetch : 0));
    }
    previous = std::max(previous, at);
    before[previous].push_back({.kind = Action::Kind::gather, .unit = stay.group});
    after[stay.last].push_back({.kind = Action::Kind::free, .unit = stay.group});
  }
  Schedule result = insert_around(table, before, after);
  add_joint_gathers(result, units);
  return result;
}

std::vector<std::vector<int>> additions(const Schedule& table, const Units& units) {
  std::set<std::pair<int, int>> deferred;  // unit and micro-batch with a W
  for (const Action& entry : table) {
    if (entry.kind == Action::Kind::weight) deferred.insert({entry.unit, entry.micro_batch});
  }
  std::vector<std::vector<int>> result(table.size());
  for (size_t i = 0; i < table.size(); ++i) {
    const Action& entry = table[i];
    if (!entry.is_event() || entry.kind == Action::Kind::forward) continue;
    std::set<int> changed;
    const int first = entry.kind == Action::Kind::recompute ? units.units.at(entry.unit).parent : entry.unit;
    for (int unit = first; unit >= 0; unit = units.units[unit].parent) {
      const bool waits = entry.kind != Action::Kind::weight && deferred.contains({unit, entry.micro_batch});
      for (const int group : units.units.at(unit).groups) {
        if (!waits && units.groups[group].is_trained) changed.insert(group);
      }
    }
    result[i].assign(changed.begin(), changed.end());
  }
  return result;
}

Schedule with_reductions(const Schedule& table, const Units& units, bool each_micro_batch) {
  const std::vector<std::vector<int>> changed = additions(table, units);
  std::map<std::pair<int, int>, size_t> last;  // by group and, with each_micro_batch, micro-batch
  for (size_t i = 0; i < table.size(); ++i) {
    for (const int group : changed[i]) {
      last[{group, each_micro_batch && !units.groups[group].is_joint ? table[i].micro_batch : 0}] = i;
    }
  }
  std::vector<Schedule> after(table.size());
  Schedule joint;
  for (const auto& [what, at] : last) {
    const Action reduce{.kind = Action::Kind::reduce, .unit = what.first, .micro_batch = table[at].micro_batch};
    (units.groups[what.first].is_joint ? joint : after[at]).push_back(reduce);
  }
  Schedule result = insert_around(table, std::vector<Schedule>(table.size()), after);
  auto end = result.end();
  while (end != result.begin() && (end - 1)->kind == Action::Kind::free && units.groups[(end - 1)->unit].is_joint)
    --end;
  result.insert(end, joint.begin(), joint.end());
  return result;
}

Schedule with_update(Schedule table) {
  table.push_back({.kind = Action::Kind::update});
  return table;
}

}  // namespace caravan
