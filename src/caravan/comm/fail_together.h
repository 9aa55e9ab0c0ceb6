#pragma once

#include <functional>

#include "caravan/comm/communicator.h"

namespace caravan {

/// Runs `work` of this rank, such as file work that rank 0 does for all. Every rank of `comm` calls it; `work` does not
/// communicate. If it throws on any rank, all ranks throw the error of the lowest one: an Error of the same class with
/// the same text, which names that rank; any other exception as an InternalError, std::bad_alloc as a ResourceError.
/// Sends 8 bytes, and the error if there is one.
void fail_together(Communicator& comm, const std::function<void()>& work, const Call& call = {});

}  // namespace caravan
