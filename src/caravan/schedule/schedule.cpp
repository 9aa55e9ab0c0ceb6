#include "caravan/schedule/schedule.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"

namespace caravan {
namespace {

[[noreturn]] void refuse_unit(const Units& units, size_t unit, std::string fact, std::string action = "") {
  throw UsageError({.op = "units",
                    .subject = fmt::format("unit {} ({})", unit, units.units[unit].name),
                    .fact = std::move(fact),
                    .action = std::move(action)});
}

/// Whether `ancestor` is `unit` or encloses it.
bool is_around(const Units& units, int ancestor, int unit) {
  while (unit > ancestor) unit = units.units[unit].parent;
  return unit == ancestor;
}

void validate_place(const Units& units, size_t i) {
  const Units::Unit& unit = units.units[i];
  const int before = i == 0 ? 0 : units.units[i - 1].stage;
  if (unit.stage != before && (i == 0 || unit.stage != before + 1)) {
    refuse_unit(units, i, fmt::format("is on stage {} after a unit on stage {}", unit.stage, i == 0 ? -1 : before),
                "list units in forward order, at least one for each stage");
  }
  if (unit.parent == -1) return;
  if (unit.parent < 0 || unit.parent >= static_cast<int>(i) ||
      !is_around(units, unit.parent, static_cast<int>(i) - 1)) {
    refuse_unit(units, i, fmt::format("does not follow its parent {} and the units inside it", unit.parent));
  }
  if (unit.stage != units.units[unit.parent].stage) {
    refuse_unit(units, i, fmt::format("is on stage {}, its parent on {}", unit.stage, before));
  }
}

void validate_groups(const Units& units, size_t i) {
  const Units::Unit& unit = units.units[i];
  for (size_t k = 0; k < unit.groups.size(); ++k) {
    const int group = unit.groups[k];
    if (group < 0 || group >= static_cast<int>(units.groups.size())) {
      refuse_unit(units, i, fmt::format("reads group {} of {}", group, units.groups.size()));
    }
    if (k > 0 && group <= unit.groups[k - 1]) refuse_unit(units, i, "lists its groups out of order");
    if (units.groups[group].is_trained && !unit.has_backward) {
      refuse_unit(units, i, fmt::format("has no backward but reads group {}, which is trained", group));
    }
  }
}

/// Writes the events of a pass through the units of one stage, which may be nested.
class PassEvents {
 public:
  PassEvents(const Pass& pass, const Units& units) : pass_(pass), units_(units), children_(units.units.size()) {
    const int first = units.first_unit(pass.stage);
    for (int i = first; i < static_cast<int>(units.units.size()) && units.units[i].stage == pass.stage; ++i) {
      const int parent = units.units[i].parent;
      (parent < 0 ? outermost_ : children_[parent]).push_back(i);
    }
  }

  Schedule events() {
    switch (pass_.kind) {
      case Pass::Kind::forward: add_each(Action::Kind::forward, outermost_); break;
      case Pass::Kind::recompute:
        if (units_.has_backward(pass_.stage)) add_each(Action::Kind::recompute, outermost_);
        break;
      case Pass::Kind::update: add(Action::Kind::update, outermost_.front()); break;
      case Pass::Kind::backward: add_backward(outermost_); break;
      case Pass::Kind::weight:
        add_each(Action::Kind::weight, outermost_);
        std::reverse(table_.begin(), table_.end());
        break;
    }
    return std::move(table_);
  }

 private:
  void add(Action::Kind kind, int unit) {
    table_.push_back({.kind = kind, .unit = unit, .micro_batch = pass_.micro_batch});
  }
  void add_each(Action::Kind kind, const std::vector<int>& units) {
    for (const int unit : units) {
      if (kind == Action::Kind::weight && !units_.units[unit].has_backward) continue;
      add(kind, unit);
      add_each(kind, children_[unit]);
    }
  }
  void add_backward(const std::vector<int>& units) {
    for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
      if (!units_.units[*unit].has_backward) continue;
      add(Action::Kind::backward, *unit);
      if (units_.units[*unit].is_recomputed) add_each(Action::Kind::recompute, children_[*unit]);
      add_backward(children_[*unit]);
    }
  }

  const Pass& pass_;
  const Units& units_;
  std::vector<std::vector<int>> children_;
  std::vector<int> outermost_;
  Schedule table_;
};

}  // namespace

std::string Action::to_string() const {
  const char* const gradient = is_gradient ? "g" : "";
  switch (kind) {
    case Kind::forward: return fmt::format("F{}.{}", unit, micro_batch);
    case Kind::recompute: return fmt::format("C{}.{}", unit, micro_batch);
    case Kind::backward: return fmt::format("B{}.{}", unit, micro_batch);
    case Kind::weight: return fmt::format("W{}.{}", unit, micro_batch);
    case Kind::gather: return fmt::format("G{}", unit);
    case Kind::free: return fmt::format("X{}", unit);
    case Kind::reduce: return fmt::format("R{}.{}", unit, micro_batch);
    case Kind::send: return fmt::format(">{}{}.{}@{}", gradient, unit, micro_batch, peer);
    case Kind::recv: return fmt::format("<{}{}.{}@{}", gradient, unit, micro_batch, peer);
    case Kind::update: return "U";
    case Kind::step: return fmt::format("S{}", unit);
    case Kind::fetch:
    case Kind::evict: {
      const char letter = kind == Kind::fetch ? 'L' : 'E';
      if (moved == Moved::parameters) return fmt::format("{}{}", letter, unit);
      return fmt::format("{}{}{}.{}", letter, moved == Moved::gradients ? "g" : "a", unit, micro_batch);
    }
  }
  return "?";
}

std::string to_string(const Schedule& table) {
  std::string line;
  for (const Action& entry : table) line += (line.empty() ? "" : " ") + entry.to_string();
  return line;
}

uint64_t digest(const Schedule& table) {
  ContentHasher hasher;
  for (const Action& entry : table) {
    hasher.update(static_cast<uint64_t>(entry.kind));
    for (const int number : {entry.unit, entry.micro_batch, entry.peer}) hasher.update(static_cast<uint64_t>(number));
    hasher.update(static_cast<uint64_t>(entry.is_gradient));
    hasher.update(static_cast<uint64_t>(entry.moved));
  }
  return hasher.value().low;
}

int Units::first_unit(int stage) const {
  const auto found = std::find_if(units.begin(), units.end(), [&](const Unit& unit) { return unit.stage == stage; });
  if (found == units.end()) {
    throw UsageError({.op = "table",
                      .subject = fmt::format("stage {}", stage),
                      .fact = fmt::format("does not exist: there are {}", num_stages())});
  }
  return static_cast<int>(found - units.begin());
}

bool Units::has_backward(int stage) const noexcept {
  return std::any_of(units.begin(), units.end(),
                     [&](const Unit& unit) { return unit.stage == stage && unit.has_backward; });
}

std::vector<int> Units::groups_of(const Action& event) const {
  if (event.unit < 0 || event.unit >= static_cast<int>(units.size())) {
    throw UsageError(
        {.op = "table", .subject = event.to_string(), .fact = fmt::format("there are {} units", units.size())});
  }
  const Unit* unit = &units[event.unit];
  std::set<int> read(unit->groups.begin(), unit->groups.end());
  while (unit->parent >= 0) {
    unit = &units[unit->parent];
    read.insert(unit->groups.begin(), unit->groups.end());
  }
  return {read.begin(), read.end()};
}

void Units::validate() const {
  int num_with_backward = 0;  // before the unit
  for (size_t i = 0; i < units.size(); ++i) {
    validate_place(*this, i);
    validate_groups(*this, i);
    if (units[i].has_backward) {
      ++num_with_backward;
      if (units[i].parent >= 0 && !units[units[i].parent].has_backward) {
        refuse_unit(*this, i, fmt::format("has a backward, but its parent {} does not", units[i].parent));
      }
      continue;
    }
    int num_around = 0;
    for (int p = units[i].parent; p >= 0; p = units[p].parent) num_around += units[p].has_backward ? 1 : 0;
    if (num_with_backward > num_around) {
      refuse_unit(*this, i, "has no backward, but a unit before it has", "set has_backward");
    }
  }
}

Schedule events_of(const Pass& pass, const Units& units) { return PassEvents(pass, units).events(); }

}  // namespace caravan
