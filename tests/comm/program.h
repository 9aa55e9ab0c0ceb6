#pragma once

#include <memory>

#include "caravan/comm/communicator.h"

namespace caravan::testing {

/// Calls every verb of `comm` a few times, with uneven parts and no elements too, and on two parts of it. The same on
/// every back-end. Returns the traffic of the communicators: `comm`, its rows, its columns.
std::vector<Traffic> run_program(const std::shared_ptr<Communicator>& comm);

}  // namespace caravan::testing
