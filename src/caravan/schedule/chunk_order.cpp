#include "caravan/schedule/chunk_order.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/memory/chunks/chunk_optimum.h"

namespace caravan {
namespace {

using Kind = Action::Kind;

std::vector<int> chunk_groups(const Units& units) {
  std::vector<int> groups;
  for (size_t group = 0; group < units.groups.size(); ++group) {
    if (units.groups[group].is_chunk) groups.push_back(static_cast<int>(group));
  }
  return groups;
}

bool moves_chunk(const Action& entry, const Units& units) {
  return (entry.kind == Kind::fetch || entry.kind == Kind::evict) && entry.moved == Action::Moved::parameters &&
         units.groups[static_cast<size_t>(entry.unit)].is_chunk;
}

/// The groups of chunks that need their slots, by moment.
std::vector<std::set<int>> slots_by_moment(const Schedule& table, const Units& units) {
  std::vector<std::set<int>> used(1);
  std::set<int> held;  // whole chunks that are gathered
  for (const Action& entry : table) {
    if (entry.is_event()) {
      used.emplace_back(held);
      continue;
    }
    if (!entry.is_of_group() || !units.groups[static_cast<size_t>(entry.unit)].is_chunk) continue;
    const bool is_whole = units.groups[static_cast<size_t>(entry.unit)].is_whole;
    if (entry.kind == Kind::gather) {
      used.back().insert(entry.unit);
      if (is_whole) held.insert(entry.unit);
    } else if (entry.kind == Kind::free && is_whole) {  // the slot was needed up to the event before
      held.erase(entry.unit);
      used.back().erase(entry.unit);
    }
  }
  return used;
}

std::string event_text(const Schedule& table, const Units& units, size_t moment) {
  for (const Action& entry : table) {
    if (!entry.is_event() || moment-- > 0) continue;
    return fmt::format("{} ({})", entry.to_string(), units.units[static_cast<size_t>(entry.unit)].name);
  }
  return "the end";
}

/// Where the moves of each moment go: after the frees in it, so that what is freed makes room.
std::vector<size_t> places_of_moments(const Schedule& table) {
  std::vector<size_t> places{0};
  for (size_t i = 0; i < table.size(); ++i) {
    if (table[i].is_event()) {
      places.push_back(i + 1);
    } else if (table[i].kind == Kind::free) {
      places.back() = i + 1;
    }
  }
  return places;
}

/// Moves what would come too early inside its moment: a step of a chunk waits for the end of its slot, which the step
/// makes old, and a fetch for a slot that is free.
Schedule in_order(const Schedule& table, const Units& units, size_t slots) {
  Schedule result;
  std::set<int> held;
  std::map<int, Action> steps;  // that wait
  std::vector<Action> fetches;  // the same
  const auto fetch = [&](const Action& entry) {
    held.insert(entry.unit);
    result.push_back(entry);
  };
  for (const Action& entry : table) {
    const bool is_of_chunk = entry.is_of_group() && units.groups[static_cast<size_t>(entry.unit)].is_chunk;
    if (is_of_chunk && entry.kind == Kind::step && held.contains(entry.unit)) {
      steps.emplace(entry.unit, entry);
      continue;
    }
    if (moves_chunk(entry, units) && entry.kind == Kind::fetch) {
      held.size() < slots ? fetch(entry) : fetches.push_back(entry);
      continue;
    }
    if (is_of_chunk && entry.kind == Kind::gather) {
      const auto late = std::ranges::find(fetches, entry.unit, &Action::unit);
      if (late != fetches.end()) {
        fetch(*late);
        fetches.erase(late);
      }
    }
    result.push_back(entry);
    if (!moves_chunk(entry, units)) continue;
    held.erase(entry.unit);
    if (const auto waits = steps.find(entry.unit); waits != steps.end()) {
      result.push_back(waits->second);
      steps.erase(waits);
    }
    if (!fetches.empty() && held.size() < slots) {
      fetch(fetches.front());
      fetches.erase(fetches.begin());
    }
  }
  return result;
}

}  // namespace

ChunkTrace chunk_trace(const Schedule& table, const Units& units, int slots) {
  const std::vector<int> groups = chunk_groups(units);
  std::map<int, int> chunk_of;
  for (const int group : groups) chunk_of.emplace(group, static_cast<int>(chunk_of.size()));
  ChunkTrace trace{.chunk_bytes = std::vector<int64_t>(groups.size(), 1)};
  for (const std::set<int>& used : slots_by_moment(table, units)) {
    trace.budget_bytes.push_back(slots);
    for (const int group : used) trace.uses.push_back({trace.num_moments() - 1, chunk_of.at(group)});
  }
  trace.budget_bytes.push_back(slots);
  for (size_t c = 0; c < groups.size(); ++c) {
    trace.uses.push_back({.moment = trace.num_moments() - 1,
                          .chunk = static_cast<int>(c),
                          .access = ChunkAccess::overwrite,
                          .is_on_host = true});
  }
  return trace;
}

int least_slots(const Schedule& table, const Units& units, int prefetch) {
  const std::vector<std::set<int>> used = slots_by_moment(table, units);
  size_t most = 0;
  for (size_t m = 0; m < used.size(); ++m) {
    std::set<int> near;
    for (size_t k = m; k < used.size() && k <= m + static_cast<size_t>(std::max(prefetch, 0)); ++k) {
      near.insert(used[k].begin(), used[k].end());
    }
    most = std::max(most, near.size());
  }
  return static_cast<int>(most);
}

Schedule with_chunk_moves(const Schedule& table, const Units& units, const ChunkRoom& room) {
  const std::vector<int> groups = chunk_groups(units);
  if (groups.empty()) return table;
  const std::vector<std::set<int>> used = slots_by_moment(table, units);
  for (size_t m = 0; m < used.size(); ++m) {
    if (static_cast<int>(used[m].size()) <= room.slots) continue;
    throw UsageError({.op = "chunks",
                      .subject = "chunks.device",
                      .fact = fmt::format("has room for {} chunk{}, but {} uses {}", room.slots,
                                          room.slots == 1 ? "" : "s", event_text(table, units, m), used[m].size()),
                      .where = {},
                      .action = fmt::format("give it room for {} chunks, or use \"auto\" or a smaller chunks.size",
                                            least_slots(table, units, 0))});
  }
  const ChunkTrace trace = chunk_trace(table, units, room.slots);
  const ChunkPlan plan = with_prefetch(plan_moves(trace, room.policy), trace, room.prefetch);
  check_moves(plan, trace);
  const std::vector<size_t> places = places_of_moments(table);
  std::vector<Schedule> before(table.size() + 1);
  for (const ChunkMove& move : plan.moves) {
    const size_t moment = std::min(static_cast<size_t>(move.moment), places.size() - 1);
    const bool is_fetch = move.kind == ChunkMove::Kind::fetch;
    before[places[moment]].push_back(
        {.kind = is_fetch ? Kind::fetch : Kind::evict, .unit = groups[static_cast<size_t>(move.chunk)]});
  }
  Schedule result;
  for (size_t i = 0; i <= table.size(); ++i) {
    result.insert(result.end(), before[i].begin(), before[i].end());
    if (i < table.size()) result.push_back(table[i]);
  }
  return in_order(result, units, static_cast<size_t>(room.slots));
}

ChunkComparison compare_chunk_orders(const Schedule& table, const Units& units, int slots) {
  Schedule bare = table;
  std::erase_if(bare, [&](const Action& entry) { return moves_chunk(entry, units); });
  const ChunkTrace trace = chunk_trace(bare, units, slots);
  const std::vector<int> groups = chunk_groups(units);
  ChunkComparison result;
  for (const ChunkPolicy policy : {ChunkPolicy::recorded, ChunkPolicy::latest, ChunkPolicy::lru}) {
    ChunkLoads loads{.policy = policy};
    for (const ChunkMove& move : plan_moves(trace, policy).moves) {
      if (move.kind == ChunkMove::Kind::fetch) loads.groups.push_back(groups[static_cast<size_t>(move.chunk)]);
    }
    result.policies.push_back(std::move(loads));
  }
  result.least = optimal_moves(trace, /*most_nodes=*/1).lower_bytes;
  return result;
}

}  // namespace caravan
