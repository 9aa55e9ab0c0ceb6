#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "caravan/comm/communicator.h"
#include "caravan/comm/options.h"

namespace caravan {

/// Runs `body` on `num_ranks` threads of this process, each with its communicator of one world and its own
/// MemoryCounter, and joins them. If bodies throw, the others are told (Communicator::abort), all threads end, and the
/// exception of the rank that failed first by cause (one that is not the echo of another's failure) is thrown here.
/// Back-end "thread". Throws UsageError if num_ranks < 1.
void run_thread_ranks(int num_ranks, const std::function<void(const std::shared_ptr<Communicator>&)>& body,
                      const CommOptions& options = {});

}  // namespace caravan
