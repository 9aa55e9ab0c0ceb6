#pragma once

#include <string>

namespace caravan::testing {

struct Ended {
  int exit_code = -1;
  std::string output;
};

/// Runs a shell command; returns stdout and stderr together. A command that hangs is ended after a minute, with exit
/// code 124.
Ended shell(const std::string& command);

/// The program world_rank.
std::string rank_program();

/// The place of a rank, as a launcher gives it.
struct Place {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
};

/// The environment of a rank started by hand.
std::string by_hand(const Place& place, const std::string& address, int port);
/// The same for rank `rank` of 2, both on one host or each on a separate host.
std::string by_hand(int rank, const std::string& address, int port, int local_size);

/// Checks that world_rank has succeeded on each of `size` ranks, with `backend`.
void expect_all_ranks(const Ended& ended, const std::string& backend, int size = 2);

}  // namespace caravan::testing
