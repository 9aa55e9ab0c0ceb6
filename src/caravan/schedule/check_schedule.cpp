#include <algorithm>
#include <numeric>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "caravan/base/error.h"
#include "caravan/schedule/schedule_run.h"

namespace caravan {

ScheduleRun::ScheduleRun(std::span<const Schedule> tables, const Units& units, std::span<const int> rank_of_stage,
                         int capacity, int chunk_slots)
    : tables_(tables), capacity_(capacity), chunk_slots_(chunk_slots), units_(units), ranks_(tables.size()) {
  units.validate();
  place_stages(rank_of_stage);
  for (size_t rank = 0; rank < tables.size(); ++rank) {
    ranks_[rank].table = &tables[rank];
    for (; ranks_[rank].at < tables[rank].size(); ++ranks_[rank].at) validate_entry(rank, entry(rank));
    ranks_[rank].at = 0;
    prepare(rank);
  }
  const Done none(units.num_stages());
  done_ = {none, none, none, none, none};
  sent_ = {none, none};
  received_ = {none, none};
}

void ScheduleRun::refuse(size_t rank, size_t at, const std::string& fact, const std::string& action) const {
  const std::string name =
      at < tables_[rank].size() ? fmt::format("entry {} ({})", at, tables_[rank][at].to_string()) : "the end";
  throw UsageError(
      {.op = "table", .subject = fmt::format("rank {}, {}", rank, name), .fact = fact, .where = "", .action = action});
}

std::string ScheduleRun::group_text(int group) const {
  return fmt::format("group {} ({})", group, units_.groups[group].name);
}

void ScheduleRun::place_stages(std::span<const int> rank_of_stage) {
  rank_of_stage_.assign(rank_of_stage.begin(), rank_of_stage.end());
  if (rank_of_stage.empty()) {
    rank_of_stage_.resize(units_.num_stages());
    std::iota(rank_of_stage_.begin(), rank_of_stage_.end(), 0);
  }
  const int num_ranks = static_cast<int>(tables_.size());
  std::set<int> ranks;
  for (const int rank : rank_of_stage_) {
    if (rank >= 0 && rank < num_ranks) ranks.insert(rank);
  }
  const auto is_no_rank = [&](int rank) { return !ranks.contains(rank); };
  if (static_cast<int>(rank_of_stage_.size()) != units_.num_stages() || static_cast<int>(ranks.size()) != num_ranks ||
      std::any_of(rank_of_stage_.begin(), rank_of_stage_.end(), is_no_rank)) {
    throw UsageError({.op = "table",
                      .subject = fmt::format("{} tables", num_ranks),
                      .fact = fmt::format("do not fit {} stages on ranks [{}]", units_.num_stages(),
                                          fmt::join(rank_of_stage_, ", ")),
                      .action = "give one table for each rank, and each rank a stage"});
  }
  for (Rank& rank : ranks_) {
    rank.holds.resize(units_.groups.size());
    rank.is_there.resize(units_.groups.size());
    rank.has_gathered.resize(units_.groups.size());
  }
  std::vector<int> first(units_.groups.size(), -1);
  for (const Units::Unit& unit : units_.units) {
    const int rank = rank_of_stage_[unit.stage];
    for (const int group : unit.groups) {
      ranks_[rank].holds[group] = true;
      if (first[group] < 0) first[group] = rank;
      if (first[group] == rank || units_.groups[group].is_joint) continue;
      throw UsageError({.op = "table",
                        .subject = group_text(group),
                        .fact = fmt::format("is used on ranks {} and {} but is not joint", first[group], rank),
                        .action = "set is_joint"});
    }
  }
}

/// Checks all indices, so that nothing else has to.
void ScheduleRun::validate_entry(size_t rank, const Action& entry) {
  const auto is_index = [](int i, size_t size) { return i >= 0 && static_cast<size_t>(i) < size; };
  if (entry.is_of_group()) {
    if (!is_index(entry.unit, units_.groups.size())) {
      refuse(rank, fmt::format("there are {} groups", units_.groups.size()));
    }
    if (!ranks_[rank].holds[entry.unit]) {
      refuse(rank, fmt::format("no unit on this rank uses {}", group_text(entry.unit)));
    }
  } else if (!is_index(entry.unit, units_.units.size())) {
    refuse(rank, fmt::format("there are {} units", units_.units.size()));
  }
  if (entry.kind == Action::Kind::send || entry.kind == Action::Kind::recv) {
    const int num_stages = units_.num_stages();
    if (!is_index(entry.peer, num_stages)) {
      refuse(rank, fmt::format("stage {} does not exist: there are {}", entry.peer, num_stages));
    }
  }
  if (!is_index(entry.micro_batch, tables_[rank].size())) {
    refuse(rank, fmt::format("there is no forward of micro-batch {}", entry.micro_batch));
  }
  if (entry.is_event()) num_micro_batches_ = std::max(num_micro_batches_, entry.micro_batch + 1);
  trains_ = trains_ || entry.kind == Action::Kind::backward;
}

void ScheduleRun::prepare(size_t rank) {
  Rank& state = ranks_[rank];
  state.changed = additions(*state.table, units_);
  for (size_t i = 0; i < state.changed.size(); ++i) {
    const Action& entry = (*state.table)[i];
    for (const int group : state.changed[i]) ++state.to_add[group][entry.micro_batch];
    if (entry.kind == Action::Kind::reduce) ++state.num_reductions[entry.unit];
  }
}

/// Whether an entry that waits does so for rank `other`.
bool ScheduleRun::awaits(const Action& next, size_t other) const {
  if (next.kind == Action::Kind::gather) {
    return ranks_[other].holds[next.unit] && !ranks_[other].has_gathered[next.unit];
  }
  return rank_of_stage_[next.peer] == static_cast<int>(other);  // to send it, or to receive what was sent before
}

/// Whether the rest of that rank's table has the entry that ends the wait.
bool ScheduleRun::will_give(const Action& next, size_t other) const {
  const auto gives = [&](const Action& given) {
    if (next.kind == Action::Kind::gather) return given == next;
    const Action::Kind kind = next.kind == Action::Kind::recv ? Action::Kind::send : Action::Kind::recv;
    if (given.kind != kind || given.is_gradient != next.is_gradient) return false;
    return kind == Action::Kind::recv || (given.unit == next.unit && given.micro_batch == next.micro_batch);
  };
  const Schedule& table = tables_[other];
  return std::find_if(table.begin() + static_cast<std::ptrdiff_t>(ranks_[other].at), table.end(), gives) != table.end();
}

/// "rank 1, which waits at entry 0 (<1.1@0) for rank 0": the ranks that wait for each other, from `first` on.
std::string ScheduleRun::text_of_cycle(size_t first) const {
  std::string text;
  std::set<size_t> seen;
  for (size_t rank = first; seen.insert(rank).second;) {
    size_t other = 0;
    while (other < ranks_.size() && !(ranks_[other].at < tables_[other].size() && awaits(entry(rank), other))) ++other;
    if (other == ranks_.size()) break;
    if (rank != first) {
      text += fmt::format("rank {}, which waits at entry {} ({}) for ", rank, ranks_[rank].at, entry(rank).to_string());
    }
    rank = other;
    if (seen.contains(rank)) text += fmt::format("rank {}", rank);
  }
  return text;
}

void ScheduleRun::refuse_waiting() const {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].at == tables_[rank].size()) continue;
    const Action& next = entry(rank);
    for (size_t other = 0; other < ranks_.size(); ++other) {
      if (!awaits(next, other) || will_give(next, other)) continue;
      const char* never = next.kind == Action::Kind::gather ? "gathers"
                          : next.kind == Action::Kind::recv ? "sends"
                                                            : "receives";
      refuse(rank, fmt::format("waits forever: rank {} never {} it", other, never));
    }
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].at < tables_[rank].size()) refuse(rank, "waits forever for " + text_of_cycle(rank));
  }
}

void ScheduleRun::finish(size_t rank) const {
  const Rank& state = ranks_[rank];
  if (!state.pass.empty()) refuse(rank, fmt::format("{} is missing", state.pass[state.num_done].to_string()));
  for (int stage = 0; stage < units_.num_stages(); ++stage) {
    if (rank_of_stage_[stage] != static_cast<int>(rank)) continue;
    for (int m = 0; m < num_micro_batches_; ++m) {
      for (const Pass::Kind kind : {Pass::Kind::forward, Pass::Kind::backward}) {
        const bool is_due = kind == Pass::Kind::forward || (trains_ && units_.has_backward(stage));
        if (!is_due || done_[static_cast<int>(kind)][stage].contains(m)) continue;
        refuse(rank, fmt::format("{} is missing", events_of({kind, m, stage}, units_).front().to_string()));
      }
    }
  }
  for (size_t group = 0; group < units_.groups.size(); ++group) {
    if (state.is_there[group]) refuse(rank, fmt::format("{} is still gathered", group_text(static_cast<int>(group))));
  }
  if (!state.fetched.empty()) {
    refuse(rank, fmt::format("{} is fetched and never gathered", group_text(*state.fetched.begin())));
  }
  if (!state.slots.empty()) refuse(rank, fmt::format("{} still has a slot", group_text(*state.slots.begin())));
  if (!state.away.empty()) {
    refuse(rank, fmt::format("the gradients of {} are away", group_text(*state.away.begin())));
  }
  if (!state.stored.empty()) {
    const auto [unit, micro_batch] = *state.stored.begin();
    refuse(rank,
           fmt::format("activations of unit {} and micro-batch {} are evicted and never fetched", unit, micro_batch));
  }
  const bool has_update = !state.table->empty() && state.table->back().kind == Action::Kind::update;
  if (trains_ && !has_update) refuse(rank, "the update is missing");
}

/// No rank lacks one at this point: a gather waits, and the update refuses a missing reduction.
void ScheduleRun::compare_joint() const {
  for (size_t b = 1; b < ranks_.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      const auto common = [&](size_t rank) {
        std::vector<size_t> positions;
        for (const size_t at : ranks_[rank].of_joint) {
          const int group = tables_[rank][at].unit;
          if (ranks_[a].holds[group] && ranks_[b].holds[group]) positions.push_back(at);
        }
        return positions;
      };
      const std::vector<size_t> of_a = common(a);
      const std::vector<size_t> of_b = common(b);
      for (size_t i = 0; i < std::min(of_a.size(), of_b.size()); ++i) {
        const Action& in_a = tables_[a][of_a[i]];
        const Action& in_b = tables_[b][of_b[i]];
        if (in_a.kind == in_b.kind && in_a.unit == in_b.unit) continue;
        refuse(b, of_b[i],
               fmt::format("rank {} has {} of the joint groups here, in its entry {}", a, in_a.to_string(), of_a[i]));
      }
    }
  }
}

void check(std::span<const Schedule> tables, const Units& units, std::span<const int> rank_of_stage, int capacity,
           int chunk_slots) {
  ScheduleRun(tables, units, rank_of_stage, capacity, chunk_slots).run();
}

}  // namespace caravan
