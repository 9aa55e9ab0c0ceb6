#pragma once

#include <memory>

#include "caravan/comm/communicator.h"

namespace caravan {

/// Rank `rank` of a world of any size that moves nothing and counts everything (Communicator::traffic). `out` keeps
/// what it held, so only shapes and counts may be relied on; buffers may have no memory behind them (meta tensors).
std::shared_ptr<Communicator> make_record_world(int rank, int size);

}  // namespace caravan
