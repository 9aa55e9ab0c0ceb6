#include <algorithm>
#include <map>
#include <utility>

#include "caravan/schedule/schedule.h"

namespace caravan {
namespace {

using Kind = Action::Kind;
using Moved = Action::Moved;

/// Entries to insert before and after those of a table.
class Moves {
 public:
  Moves(const Schedule& table, int ahead) : table_(table), before_(table.size() + 1), after_(table.size()) {
    for (size_t i = 0; i < table.size(); ++i) {
      if (table[i].is_event()) events_.push_back(i);
      num_events_.push_back(events_.size());
    }
    ahead_ = static_cast<size_t>(std::max(ahead, 0));
  }

  /// Whether so few events lie between the two entries that a move would end too late.
  bool is_near(size_t from, size_t to, size_t more = 0) const {
    return num_events_[to] - num_events_[from] <= ahead_ + 1 + more;
  }

  /// Before the event that is `ahead` events earlier than entry `at`, but after entry `after` (-1: none) and, for each
  /// kind of move, after earlier fetches.
  void add_fetch(const Action& fetch, size_t at, std::ptrdiff_t after) {
    const size_t event = num_events_[at] - (table_[at].is_event() ? 1 : 0);  // events before it
    size_t place = ahead_ == 0 || events_.empty() ? at : std::min(at, events_[event > ahead_ ? event - ahead_ : 0]);
    place = std::max(place, static_cast<size_t>(after + 1));
    size_t& last = last_[fetch.moved];
    place = std::min(std::max(place, last), at);
    last = place;
    before_[place].push_back(fetch);
  }
  void add_after(const Action& evict, size_t at) { after_[at].push_back(evict); }

  Schedule result() const {
    Schedule all;
    for (size_t i = 0; i < table_.size(); ++i) {
      all.insert(all.end(), before_[i].begin(), before_[i].end());
      all.push_back(table_[i]);
      all.insert(all.end(), after_[i].begin(), after_[i].end());
    }
    return all;
  }

 private:
  const Schedule& table_;
  size_t ahead_;
  std::vector<size_t> events_;      // positions of events
  std::vector<size_t> num_events_;  // up to each entry, inclusive
  std::map<Moved, size_t> last_;
  std::vector<Schedule> before_, after_;
};

void move_parameters(Moves& moves, const Schedule& table, const Units& units) {
  std::map<int, std::ptrdiff_t> freed;
  for (size_t i = 0; i < table.size(); ++i) {
    const int group = table[i].unit;
    if (table[i].kind == Kind::free) freed[group] = static_cast<std::ptrdiff_t>(i);
    if (table[i].kind != Kind::gather) continue;
    const Units::Group& about = units.groups[static_cast<size_t>(group)];
    if (!about.is_fetched || about.is_chunk) continue;
    const auto before = freed.find(group);
    moves.add_fetch({.kind = Kind::fetch, .unit = group}, i, before == freed.end() ? -1 : before->second);
  }
}

/// The groups whose sums an entry may write or read; `added`: those that it adds to. A B also adds what its W does not
/// put off.
std::vector<int> touched(const Action& entry, const Units& units, const std::vector<int>& added) {
  if (entry.kind == Kind::reduce) return {entry.unit};
  if (!entry.is_event() || entry.kind == Kind::forward) return {};
  if (entry.kind == Kind::recompute) return added;
  return units.groups_of(entry);
}

void move_gradients(Moves& moves, const Schedule& table, const Units& units) {
  std::map<int, size_t> last;  // the last entry that touches the sums of a group
  const std::vector<std::vector<int>> added = additions(table, units);
  for (size_t i = 0; i < table.size(); ++i) {
    for (const int group : touched(table[i], units, added[i])) {
      if (!units.groups[static_cast<size_t>(group)].moves_gradients) continue;
      const auto before = last.find(group);
      if (before != last.end() && table[before->second].micro_batch != table[i].micro_batch &&
          !moves.is_near(before->second, i)) {
        const int micro_batch = table[before->second].micro_batch;
        Action move{.kind = Kind::evict, .unit = group, .micro_batch = micro_batch, .moved = Moved::gradients};
        moves.add_after(move, before->second);
        move.kind = Kind::fetch;
        moves.add_fetch(move, i, static_cast<std::ptrdiff_t>(before->second));
      }
      last[group] = i;
    }
  }
}

void move_activations(Moves& moves, const Schedule& table, const Units& units) {
  std::map<std::pair<int, int>, size_t> ends;  // the last event of the forward of a unit with what is inside it
  for (size_t i = 0; i < table.size(); ++i) {
    if (!table[i].is_event()) continue;
    const int micro_batch = table[i].micro_batch;
    if (table[i].kind == Kind::forward) {
      for (int unit = table[i].unit; unit >= 0; unit = units.units[static_cast<size_t>(unit)].parent) {
        ends[{unit, micro_batch}] = i;
      }
      continue;
    }
    const auto end = ends.find({table[i].unit, micro_batch});
    if (table[i].kind != Kind::backward || end == ends.end()) continue;
    // A store takes an event: they are worth a move only if there is another before their fetch.
    const bool is_near = moves.is_near(end->second, i, /*more=*/1);
    if (!units.units[static_cast<size_t>(table[i].unit)].moves_activations || is_near) continue;
    Action move{.kind = Kind::evict, .unit = table[i].unit, .micro_batch = micro_batch, .moved = Moved::activations};
    moves.add_after(move, end->second);
    move.kind = Kind::fetch;
    moves.add_fetch(move, i, static_cast<std::ptrdiff_t>(end->second));
  }
}

}  // namespace

Schedule with_moves(const Schedule& table, const Units& units, int ahead) {
  Moves moves(table, ahead);
  move_parameters(moves, table, units);
  move_gradients(moves, table, units);
  move_activations(moves, table, units);
  return moves.result();
}

Schedule with_steps(const Schedule& table, const Units& units) {
  std::map<int, size_t> last;
  for (size_t i = 0; i < table.size(); ++i) {
    if (table[i].kind != Kind::reduce) continue;
    if (units.groups[static_cast<size_t>(table[i].unit)].steps_early) last[table[i].unit] = i;
  }
  Schedule result;
  std::vector<int> begun;  // groups whose last reduction may be in flight
  const auto step_all = [&] {
    for (const int group : begun) result.push_back({.kind = Kind::step, .unit = group});
    begun.clear();
  };
  for (size_t i = 0; i < table.size(); ++i) {
    const auto found = last.find(table[i].unit);
    const bool is_last = table[i].kind == Kind::reduce && found != last.end() && found->second == i;
    result.push_back(table[i]);
    if (!is_last) continue;
    step_all();
    begun.push_back(table[i].unit);
  }
  step_all();
  return result;
}

}  // namespace caravan
