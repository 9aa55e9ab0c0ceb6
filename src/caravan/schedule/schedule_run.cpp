#include "caravan/schedule/schedule_run.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include <fmt/format.h>

namespace caravan {

namespace {

using Kind = Action::Kind;

Pass::Kind pass_of(Kind event) {
  if (event == Kind::forward) return Pass::Kind::forward;
  if (event == Kind::recompute) return Pass::Kind::recompute;
  return event == Kind::weight ? Pass::Kind::weight : Pass::Kind::backward;
}

}  // namespace

void ScheduleRun::run() {
  for (bool moves = true; moves;) {
    moves = false;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      while (ranks_[rank].at < tables_[rank].size() && step(rank)) {
        ++ranks_[rank].at;
        moves = true;
      }
    }
  }
  refuse_waiting();
  for (size_t rank = 0; rank < ranks_.size(); ++rank) finish(rank);  // with all inputs: nothing is left in flight
  compare_joint();
}

bool ScheduleRun::step(size_t rank) {
  const Action& next = entry(rank);
  switch (next.kind) {
    case Kind::forward:
    case Kind::recompute:
    case Kind::backward:
    case Kind::weight: compute(rank, next); return true;
    case Kind::gather: return gather(rank, next.unit);
    case Kind::free: free(rank, next.unit); return true;
    case Kind::reduce: reduce(rank, next); return true;
    case Kind::send: return send(rank, next);
    case Kind::recv: return recv(rank, next);
    case Kind::update: update(rank); return true;
    case Kind::fetch: fetch(rank, next); return true;
    case Kind::evict: evict(rank, next); return true;
    case Kind::step: step_group(rank, next.unit); return true;
  }
  refuse(rank, "is of an unknown kind");
}

void ScheduleRun::begin_pass(size_t rank, const Action& event) {
  const int stage = units_.units[event.unit].stage;
  const int m = event.micro_batch;
  if (rank_of_stage_[stage] != static_cast<int>(rank)) {
    refuse(rank, fmt::format("stage {} is on rank {}", stage, rank_of_stage_[stage]));
  }
  if (event.kind == Kind::recompute && units_.units[event.unit].parent >= 0) {
    refuse(rank, "comes outside of a backward");
  }
  const Pass pass{pass_of(event.kind), m, stage};
  const auto is_done = [&](Pass::Kind kind, int of) { return done_[static_cast<int>(kind)][of].contains(m); };
  if (is_done(pass.kind, stage)) refuse(rank, "is there twice");
  if (pass.kind == Pass::Kind::backward && !is_done(Pass::Kind::forward, stage)) {
    refuse(rank, "comes before its forward");
  }
  if (pass.kind == Pass::Kind::recompute) {
    if (!is_done(Pass::Kind::forward, stage)) refuse(rank, "comes before its forward");
    if (is_done(Pass::Kind::backward, stage)) refuse(rank, "comes after its backward");
  }
  if (pass.kind == Pass::Kind::weight && !is_done(Pass::Kind::backward, stage)) {
    refuse(rank, "comes before its backward");
  }
  const int from = pass.kind == Pass::Kind::forward ? stage - 1 : stage + 1;
  const bool has_input = pass.kind == Pass::Kind::forward || pass.kind == Pass::Kind::backward;
  if (has_input && from >= 0 && from < units_.num_stages()) {
    const bool local = rank_of_stage_[from] == rank_of_stage_[stage];
    if (local && !is_done(pass.kind, from)) refuse(rank, fmt::format("comes before that of stage {}", from));
    if (!local && !received_[pass.kind == Pass::Kind::backward ? 1 : 0][stage].contains(m)) {
      refuse(rank, fmt::format("has received nothing from stage {}", from));
    }
  }
  ranks_[rank].pass = events_of(pass, units_);
  ranks_[rank].num_done = 0;
  if (ranks_[rank].pass.empty()) refuse(rank, fmt::format("stage {} has no backward", stage));
}

void ScheduleRun::compute(size_t rank, const Action& event) {
  Rank& state = ranks_[rank];
  if (state.pass.empty()) begin_pass(rank, event);
  const Action& due = state.pass[state.num_done];
  if (event.kind != due.kind || event.unit != due.unit || event.micro_batch != due.micro_batch) {
    const auto end = state.pass.begin() + static_cast<std::ptrdiff_t>(state.num_done);
    if (std::find(state.pass.begin(), end, event) != end) refuse(rank, "is there twice");
    refuse(rank, fmt::format("{} is due: a pass goes through its units in order", due.to_string()));
  }
  for (const int group : units_.groups_of(event)) {
    if (units_.groups[group].is_gathered && !state.is_there[group]) {
      refuse(rank, fmt::format("reads {}, which is not gathered", group_text(group)));
    }
  }
  const bool needs_activations = event.kind == Kind::backward || event.kind == Kind::weight;
  if (needs_activations && state.stored.contains({event.unit, event.micro_batch})) {
    refuse(rank, "needs activations that are evicted");
  }
  for (const int group : event.kind == Kind::forward ? std::vector<int>() : units_.groups_of(event)) {
    if (!state.away.contains(group)) continue;
    refuse(rank, fmt::format("may add to the gradient of {}, which is evicted", group_text(group)));
  }
  for (const int group : state.changed[state.at]) {
    --state.to_add[group][event.micro_batch];
    if (!state.has_reduced.contains({group, event.micro_batch})) state.unreduced.insert({group, event.micro_batch});
  }
  state.has_backward |= event.kind == Kind::backward;
  if (++state.num_done < state.pass.size()) return;
  const Pass::Kind kind = pass_of(state.pass.front().kind);
  done_[static_cast<int>(kind)][units_.units[event.unit].stage].insert(event.micro_batch);
  state.pass.clear();
}

bool ScheduleRun::gather(size_t rank, int group) {
  Rank& state = ranks_[rank];
  if (!units_.groups[group].is_gathered) refuse(rank, fmt::format("{} needs no gather", group_text(group)));
  if (state.is_there[group]) refuse(rank, fmt::format("{} is gathered already", group_text(group)));
  const bool is_chunk = units_.groups[group].is_chunk;
  if (is_chunk && !state.slots.contains(group)) refuse(rank, fmt::format("{} has no slot", group_text(group)));
  if (units_.groups[group].is_fetched && !is_chunk && !state.waits && state.fetched.erase(group) == 0) {
    refuse(rank, fmt::format("{} is not fetched", group_text(group)));
  }
  if (units_.groups[group].is_joint) {
    if (!state.waits) {
      if (state.has_gathered[group]) refuse(rank, "a joint group is gathered once a step");
      state.has_gathered[group] = true;
      state.of_joint.push_back(state.at);
    }
    state.waits = std::any_of(ranks_.begin(), ranks_.end(),
                              [&](const Rank& other) { return other.holds[group] && !other.has_gathered[group]; });
    if (state.waits) return false;
  }
  state.is_there[group] = true;
  return true;
}

void ScheduleRun::free(size_t rank, int group) {
  if (!ranks_[rank].is_there[group]) refuse(rank, fmt::format("{} is not gathered", group_text(group)));
  ranks_[rank].is_there[group] = false;
}

void ScheduleRun::reduce(size_t rank, const Action& entry) {
  Rank& state = ranks_[rank];
  const int group = entry.unit;
  if (!units_.groups[group].is_trained) refuse(rank, fmt::format("{} is not trained", group_text(group)));
  if (units_.groups[group].is_gathered && !state.is_there[group]) {
    refuse(rank, fmt::format("{} is not gathered", group_text(group)));
  }
  if (state.away.contains(group)) refuse(rank, fmt::format("the gradients of {} are evicted", group_text(group)));
  if (state.stepped.contains(group)) refuse(rank, fmt::format("{} has stepped", group_text(group)));
  const std::map<int, int>& to_add = state.to_add[group];
  const int num = state.num_reductions[group];
  const bool each = num != 1;
  if (to_add.empty()) refuse(rank, fmt::format("nothing adds to the gradient of {}", group_text(group)));
  if (!state.has_reduced.insert({group, entry.micro_batch}).second) refuse(rank, "is there twice");
  if (each && (num != static_cast<int>(to_add.size()) || units_.groups[group].is_joint)) {
    refuse(rank, fmt::format("{} has {} reductions for {} micro-batches: one in all{} is right", group_text(group), num,
                             to_add.size(), units_.groups[group].is_joint ? "" : " or one for each"));
  }
  const auto own = to_add.find(entry.micro_batch);
  if (each && own == to_add.end()) refuse(rank, "nothing adds to the gradient in this micro-batch");
  for (auto it = each ? own : to_add.begin(); it != (each ? std::next(own) : to_add.end()); ++it) {
    if (it->second == 0) continue;
    refuse(rank, fmt::format("micro-batch {} has yet to add to the gradient of {}", it->first, group_text(group)));
  }
  state.unreduced.erase({group, entry.micro_batch});
  if (units_.groups[group].is_joint) state.of_joint.push_back(state.at);
}

int ScheduleRun::check_crossing(size_t rank, const Action& entry, int here) const {
  if (here < 0 || std::abs(here - entry.peer) != 1) {
    refuse(rank, fmt::format("stage {} is not a neighbour of stage {}", entry.peer, here));
  }
  const int later = std::max(here, entry.peer);
  if (entry.unit != units_.first_unit(later)) {
    refuse(rank, fmt::format("the input of stage {} is that of unit {}", later, units_.first_unit(later)));
  }
  if (rank_of_stage_[here] != static_cast<int>(rank)) {
    refuse(rank, fmt::format("stage {} is on rank {}", here, rank_of_stage_[here]));
  }
  const int other = rank_of_stage_[entry.peer];
  if (other == static_cast<int>(rank))
    refuse(rank, fmt::format("stages {} and {} are both on this rank", here, entry.peer));
  if (entry.is_gradient && !units_.has_backward(later - 1)) {
    refuse(rank, fmt::format("stage {} has no backward", later - 1));
  }
  return other;
}

bool ScheduleRun::send(size_t rank, const Action& entry) {
  const int here = entry.is_gradient ? units_.units[entry.unit].stage : entry.peer - 1;
  const size_t to = check_crossing(rank, entry, here);
  const Pass::Kind made_by = entry.is_gradient ? Pass::Kind::backward : Pass::Kind::forward;
  if (!done_[static_cast<int>(made_by)][here].contains(entry.micro_batch)) refuse(rank, "is not computed yet");
  auto& on_their_way = sends_[{rank, to}];
  const auto is_of_kind = [&](const auto& sent) { return sent.first.is_gradient == entry.is_gradient; };
  if (capacity_ > 0 && std::ranges::count_if(on_their_way, is_of_kind) >= capacity_) return false;
  if (!sent_[entry.is_gradient ? 1 : 0][entry.peer].insert(entry.micro_batch).second) refuse(rank, "is there twice");
  on_their_way.emplace_back(entry, ranks_[rank].at);
  return true;
}

bool ScheduleRun::recv(size_t rank, const Action& entry) {
  const int here = entry.is_gradient ? entry.peer - 1 : units_.units[entry.unit].stage;
  const size_t from = check_crossing(rank, entry, here);
  std::set<int>& received = received_[entry.is_gradient ? 1 : 0][here];
  if (received.contains(entry.micro_batch)) refuse(rank, "is there twice");
  auto& sends = sends_[{from, rank}];
  if (sends.empty()) return false;
  const Action& sent = sends.front().first;
  if (sent.unit != entry.unit || sent.micro_batch != entry.micro_batch || sent.is_gradient != entry.is_gradient) {
    refuse(rank, fmt::format("the next message from rank {} is its entry {} ({})", from, sends.front().second,
                             sent.to_string()));
  }
  sends.pop_front();
  received.insert(entry.micro_batch);
  return true;
}

void ScheduleRun::update(size_t rank) {
  Rank& state = ranks_[rank];
  if (!trains_) refuse(rank, "there is no backward");
  const bool is_again = state.num_updates++ > 0;
  if (is_again && !state.has_backward) refuse(rank, "no backward comes before it, after the last update");
  state.has_backward = false;
  for (const auto& [group, of_micro_batches] : state.to_add) {
    if (!state.num_reductions.contains(group)) {
      refuse(rank, fmt::format("{} has a gradient but no reduction", group_text(group)));
    }
  }
  // Stages that step on their own do so after complete backwards and their reductions.
  if (state.at + 1 == state.table->size() || state.unreduced.empty()) return;
  const auto [group, m] = *state.unreduced.begin();
  refuse(rank, fmt::format("the gradient of {} in micro-batch {} is not reduced yet", group_text(group), m));
}

void ScheduleRun::fetch(size_t rank, const Action& entry) {
  Rank& state = ranks_[rank];
  switch (entry.moved) {
    case Action::Moved::parameters:
      if (!units_.groups[entry.unit].is_fetched) refuse(rank, group_text(entry.unit) + " rests on the device");
      if (units_.groups[entry.unit].is_chunk) {
        if (!state.slots.insert(entry.unit).second) refuse(rank, group_text(entry.unit) + " has a slot already");
        if (static_cast<int>(state.slots.size()) <= chunk_slots_) return;
        refuse(rank, fmt::format("needs {} slots, and there are {}", state.slots.size(), chunk_slots_));
      }
      if (state.is_there[entry.unit]) refuse(rank, group_text(entry.unit) + " is gathered");
      if (!state.fetched.insert(entry.unit).second) refuse(rank, group_text(entry.unit) + " is fetched already");
      return;
    case Action::Moved::gradients:
      if (state.away.erase(entry.unit) == 0) refuse(rank, "the gradients of " + group_text(entry.unit) + " are here");
      return;
    case Action::Moved::activations:
      if (state.stored.erase({entry.unit, entry.micro_batch}) == 0) refuse(rank, "these activations are not evicted");
      return;
  }
}

void ScheduleRun::evict(size_t rank, const Action& entry) {
  Rank& state = ranks_[rank];
  switch (entry.moved) {
    case Action::Moved::parameters:
      if (!units_.groups[entry.unit].is_chunk) refuse(rank, "parameters are freed, not evicted");
      if (units_.groups[entry.unit].is_whole && state.is_there[entry.unit]) {
        refuse(rank, group_text(entry.unit) + " is gathered");
      }
      if (state.slots.erase(entry.unit) == 0) refuse(rank, group_text(entry.unit) + " has no slot");
      return;
    case Action::Moved::gradients:
      if (!units_.groups[entry.unit].moves_gradients) refuse(rank, group_text(entry.unit) + " keeps its gradients");
      if (!state.away.insert(entry.unit).second) refuse(rank, "they are evicted already");
      return;
    case Action::Moved::activations:
      if (!units_.units[entry.unit].moves_activations) refuse(rank, "this unit keeps its activations");
      if (!state.stored.insert({entry.unit, entry.micro_batch}).second) refuse(rank, "they are evicted already");
      return;
  }
}

void ScheduleRun::step_group(size_t rank, int group) {
  Rank& state = ranks_[rank];
  int num_done = 0;
  for (const auto& [reduced, micro_batch] : state.has_reduced) num_done += reduced == group ? 1 : 0;
  if (num_done == 0 || num_done < state.num_reductions[group]) {
    refuse(rank, fmt::format("the gradient of {} is not reduced yet", group_text(group)));
  }
  if (!state.stepped.insert(group).second) refuse(rank, "is there twice");
  if (state.slots.contains(group)) refuse(rank, group_text(group) + " has a slot, whose contents would be old");
}

}  // namespace caravan
