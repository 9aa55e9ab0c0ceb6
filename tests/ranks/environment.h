#pragma once

#include <string>
#include <utility>
#include <vector>

namespace caravan::testing {

/// This process's environment as rank `rank` of `ranks` on one host is to find it, whose store is served on `port` of
/// the loopback; then `more`, names and values.
std::vector<std::string> rank_environment(int rank, int ranks, int port,
                                          const std::vector<std::pair<std::string, std::string>>& more);

/// As exec and posix_spawn take them; `texts` outlives it.
std::vector<char*> pointers(std::vector<std::string>& texts);

}  // namespace caravan::testing
