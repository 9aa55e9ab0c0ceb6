#pragma once

#include "caravan/comm/hierarchical/task.h"

namespace caravan::hierarchical {

/// From here on an all_reduce takes all ranks of a host to the other hosts, not the leaders alone: two more
/// rendezvous of all ranks cost less than one rank that moves everything.
inline constexpr int64_t kLevelBytes = 64 << 10;

/// Appends the steps of a collective over two levels; see make_hierarchical_world for what they are. The calls of the
/// ranks fit each other by then. A barrier needs them only where calls are not compared.
void add_collective(Task& task);

/// Begins the operation on `comm`, which does it alone; `peer` is the rank there of the peer of send and recv.
Work begin_on(Communicator& comm, Task& task, int peer);
/// The same, blocking.
void run_on(Communicator& comm, const Operation& operation, int peer);

}  // namespace caravan::hierarchical
