#pragma once

#include <string>
#include <utility>
#include <vector>

namespace caravan::testing {

/// The environment of rank `rank` of `ranks` on one host, with the store at `port` of the loopback interface: the
/// environment of this process plus `more`, names and values.
std::vector<std::string> rank_environment(int rank, int ranks, int port,
                                          const std::vector<std::pair<std::string, std::string>>& more);

/// The form that exec and posix_spawn take. `texts` must outlive the result.
std::vector<char*> pointers(std::vector<std::string>& texts);

}  // namespace caravan::testing
