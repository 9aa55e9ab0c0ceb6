#pragma once

#include <memory>

#include "caravan/comm/communicator.h"

namespace caravan::testing {

/// Calls every verb of `comm` a few times, also with uneven parts, no elements and on two parts of it; the same on
/// every back-end. Returns what the communicators have counted, one after the other: `comm`, its rows, its columns.
std::vector<Traffic> run_program(const std::shared_ptr<Communicator>& comm);

}  // namespace caravan::testing
