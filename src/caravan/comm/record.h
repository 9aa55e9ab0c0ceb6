#pragma once

#include <memory>

#include "caravan/comm/communicator.h"

namespace caravan {

/// Rank `rank` of a world of any size that sends nothing and counts everything (Communicator::traffic). `out` is not
/// written, so only shapes and counts mean anything. An operation ends when it is waited for, never by itself.
/// Buffers need no memory (meta tensors). `shares_memory`: as of a world whose ranks do, which then chooses and counts
/// what such ranks share.
std::shared_ptr<Communicator> make_record_world(int rank, int size, bool shares_memory = false);

}  // namespace caravan
