#pragma once

#include "caravan/comm/backends/hierarchical/hierarchical_task.h"

namespace caravan::hierarchical {

/// From this size on, all ranks of a host take part in the exchange between hosts of an all_reduce, not only the
/// leaders: two more steps on each host cost less than one rank that moves everything.
inline constexpr int64_t kCrossBytes = 64 << 10;

/// Appends the steps of a collective over two levels, which make_hierarchical_world describes. The ranks' calls have
/// been compared before. A barrier needs these steps only if they are not compared.
void add_collective(HierarchicalTask& task);

}  // namespace caravan::hierarchical
