#pragma once

#include <string>
#include <vector>

namespace caravan {

struct LaunchOptions {
  int num_ranks = 1;
  std::string program;                 ///< path of the executable that every rank runs; PATH is not searched
  std::vector<std::string> arguments;  ///< without argv[0]
  std::string log_dir;                 ///< for rank_N.log of every rank but 0; empty: unnamed files
  bool gives_terminal = false;         ///< to rank 0, which reads from it: it gets the terminal's Ctrl-C alone
  bool is_caravan = true;              ///< its exit codes and advice are Caravan's; false: a user's program
};

/// Runs `num_ranks` processes of `program` on this host and returns the exit code of the job when all have ended:
///   0    every rank ended with 0
///   4    a rank was killed by a signal
///   5    a rank was killed because memory ran out
///   130  the ranks stopped on request, or the user asked twice
///   141  rank 0 was killed by SIGPIPE: its output was closed
///   n    the code of the rank that failed
/// Called by main() of a program with one thread that does not link libtorch: ranks are started by fork and exec.
///
/// Each rank finds its job in the environment (RankInfo::from_environment): the launcher serves the store, with a
/// secret for this job unless the environment has one (JobKey::for_launch), and reports refused connections on stderr.
/// MASTER_PORT is another port, kept free for a rank 0 that serves its own store, as torch.distributed does. Rank 0 has
/// the launcher's stdout and stderr, and its stdin, unless that is a terminal that is not given to it; the other ranks
/// write to logs. When a rank fails, the others have half a second to end and are then killed. stderr gets the error of
/// the rank that caused the failure, once: a signal or an exit code other than 4 comes before exit code 4, the
/// consequence of a lost peer; among equals the earliest. If the launcher dies, the kernel kills the ranks. A rank that
/// is stopped (SIGSTOP) is reported on stderr at once, and again when it continues.
///
/// Processes that a rank leaves in its process group are killed, and have ended when this returns (unless that takes
/// more than 5 s). Processes that have left the group continue, as children of the launcher (PR_SET_CHILD_SUBREAPER),
/// then of init.
///
/// Each rank is a separate process group, so a terminal's Ctrl-C reaches only the launcher, or with `gives_terminal`
/// only rank 0, whose group is the foreground of the terminal until this returns. It passes the first SIGINT,
/// SIGTERM or SIGHUP on to every rank, once, as SIGTERM or SIGHUP: a request to stop. The second one kills all ranks.
///
/// Throws UsageError if num_ranks < 1 or the program cannot be run, ResourceError if logs or processes cannot be
/// created.
int launch(const LaunchOptions& options);

}  // namespace caravan
