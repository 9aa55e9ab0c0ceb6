#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <utility>

#include "caravan/schedule/schedule.h"

namespace caravan {

/// The position of the execution of a step in its table.
class TableCursor {
 public:
  /// Whether the execution reaches the entry by itself, as a unit runs; all other entries are performed in between.
  static bool is_reached(const Action& entry) { return entry.is_event() && entry.kind != Action::Kind::weight; }

  /// `table` outlives its execution.
  void begin(const Schedule& table);
  void end() noexcept { table_ = nullptr; }

  bool is_at_end() const noexcept { return table_ == nullptr || position_ == table_->size(); }
  size_t position() const noexcept { return position_; }
  const Action& entry() const { return (*table_)[position_]; }
  void advance() noexcept { ++position_; }

  /// Performs all entries before the next event.
  template <class Perform>
  void perform_until_event(const Perform& perform) {
    for (; !is_at_end() && !is_reached(entry()); advance()) perform(entry());
  }
  /// The next event; null at the end.
  const Action* next_event() const;
  /// For a reduction at this position: see ends_reductions.
  bool ends_reductions() const;
  /// Another entry follows this one.
  bool has_more() const noexcept { return position_ + 1 < table_->size(); }
  /// Whether the weight gradients of a backward have a separate entry.
  bool has_weight_entry(const Action& backward) const {
    return with_weight_.contains({backward.unit, backward.micro_batch});
  }
  /// "entry 5 of the table: expected ..", for errors.
  std::string place() const;

 private:
  const Schedule* table_ = nullptr;
  size_t position_ = 0;
  std::set<std::pair<int, int>> with_weight_;  ///< unit and micro-batch
};

}  // namespace caravan
