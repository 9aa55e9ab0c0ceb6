#include "caravan/schedule/reduction_order.h"

namespace caravan {

bool ends_reductions(const Schedule& table, size_t position) {
  const Action& reduction = table[position];
  for (size_t i = position + 1; i < table.size() && table[i].kind != Action::Kind::update; ++i) {
    if (table[i].kind == reduction.kind && table[i].unit == reduction.unit) return false;
  }
  return true;
}

}  // namespace caravan
