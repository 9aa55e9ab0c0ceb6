#pragma once

#include <string>
#include <vector>

namespace caravan {

struct LaunchOptions {
  int num_ranks = 1;
  std::string program;                 ///< path of the executable that every rank runs; PATH is not searched
  std::vector<std::string> arguments;  ///< without argv[0]
  std::string log_dir;                 ///< rank_N.log of every rank but 0; empty: files without a name
};

/// Runs `num_ranks` processes of `program` on this host and returns the exit code of the job when all have ended:
///   0    every rank ended with 0
///   4    a rank was killed by a signal
///   130  the ranks stopped on request, or the user insisted
///   n    the code of the rank that failed
/// Called by main() of a program with one thread, which does not link libtorch: ranks are started by exec.
///
/// Each rank finds its job in the environment (RankInfo::from_environment): the launcher serves the store, with a
/// secret drawn for this job unless the environment has one (JobKey::for_launch), and tells stderr whom it refused.
/// Rank 0 has the launcher's stdout and stderr, and its stdin unless that is a terminal; the output of the others goes
/// to logs. When a rank fails, the others get half a second to end, are killed, and stderr names the rank that failed
/// first by cause: a signal or an exit code other than 4 before an exit code 4, which is the echo of a lost peer; then
/// the earliest. Ranks are killed by the kernel if the launcher dies in whatever way. A rank that is stopped is told of
/// on stderr at once, and again when it goes on.
///
/// Ranks are process groups of their own, so a terminal's Ctrl-C reaches the launcher alone. The first SIGINT, SIGTERM
/// or SIGHUP is passed on once to every rank, as SIGTERM or SIGHUP, and asks it to stop; the second kills all of them.
///
/// Throws UsageError if num_ranks < 1 or the program cannot be run, ResourceError if logs or processes cannot be made.
int launch(const LaunchOptions& options);

}  // namespace caravan
