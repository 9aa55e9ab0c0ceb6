#pragma once

#include <chrono>

#include "caravan/comm/c10d/queue.h"

namespace caravan {

/// Returns when every rank of the group has called it. All ranks exchange messages, so that the error of a late rank
/// names all ranks that did not join within `timeout` (0: the group's); then the group is dead.
void monitored_barrier(C10dQueue& queue, int rank, int size, std::chrono::milliseconds timeout);

}  // namespace caravan
