#pragma once

#include <ATen/ops/zeros.h>

#include "caravan/base/memory/memory_counter.h"
#include "caravan/engine/flat/flat.h"

namespace caravan {

/// Zeros for state of an optimizer that some parameters have: laid out as the values, without memory between them.
template <class Has>
FlatMemory zeros_of_slots(const FlatState& state, const Has& has) {
  const MemoryKindScope kind(MemoryKind::optimizer);
  const auto size_of = [](const Slot& slot) { return FlatLayout::aligned(slot.sharded_count()); };
  int64_t count = 0, place = 0;
  for (const Slot& slot : state.layout.slots()) count += has(slot) ? size_of(slot) : 0;
  const at::Tensor all = at::zeros({count}, state.values.options());
  FlatMemory flat(state.values.options());
  for (const Slot& slot : state.layout.slots()) {
    if (!has(slot)) continue;
    flat.add(slot.sharded_offset, all.narrow(0, place, slot.sharded_count()));
    place += size_of(slot);
  }
  return flat;
}

}  // namespace caravan
