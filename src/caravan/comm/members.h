#pragma once

#include <span>
#include <string_view>

#include "caravan/comm/communicator.h"

namespace caravan {

/// Checks one rank's list for Communicator::split: ranks of `parent`, each once, this one among them.
/// Returns this rank's place in it. Throws UsageError.
int check_members(std::span<const int> members, const Communicator& parent, std::string_view name);

}  // namespace caravan
