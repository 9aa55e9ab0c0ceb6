#include "caravan/engine/table_cursor.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/schedule/reduction_order.h"

namespace caravan {

void TableCursor::begin(const Schedule& table) {
  table_ = &table;
  position_ = 0;
  with_weight_.clear();
  for (const Action& action : table) {
    if (action.kind == Action::Kind::weight) with_weight_.emplace(action.unit, action.micro_batch);
  }
}

const Action* TableCursor::next_event() const {
  const auto found = std::find_if(table_->begin() + static_cast<std::ptrdiff_t>(position_), table_->end(), is_reached);
  return found == table_->end() ? nullptr : &*found;
}

bool TableCursor::ends_reductions() const { return caravan::ends_reductions(*table_, position_); }

std::string TableCursor::place() const {
  return fmt::format("entry {} of the table{}", position_,
                     is_at_end() ? ", its end" : ": expected " + entry().to_string());
}

}  // namespace caravan
