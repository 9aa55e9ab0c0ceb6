#pragma once

#include <functional>
#include <memory>

#include "caravan/comm/communicator.h"
#include "caravan/comm/options.h"

namespace caravan {

/// Runs `body` on `num_ranks` threads of this process, each with its own communicator of one world and its own
/// MemoryCounter, and joins them. If a body throws, Communicator::abort ends the other ranks, and the original
/// exception is rethrown here, not the ones it caused on other ranks. Back-end "thread". Throws UsageError if num_ranks
/// < 1.
void run_thread_ranks(int num_ranks, const std::function<void(const std::shared_ptr<Communicator>&)>& body,
                      const CommOptions& options = {});

}  // namespace caravan
