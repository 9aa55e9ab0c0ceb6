#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <utility>

#include "caravan/schedule/schedule.h"

namespace caravan {

/// Where the execution of a step stands in its table.
class TableCursor {
 public:
  /// The execution comes to it by itself, as a unit runs; all other entries are performed on the way.
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
  /// Of a reduction that stands here: see ends_reductions.
  bool ends_reductions() const;
  /// Another entry follows this one.
  bool has_more() const noexcept { return position_ + 1 < table_->size(); }
  /// The weight gradients of a backward have an entry of their own.
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
