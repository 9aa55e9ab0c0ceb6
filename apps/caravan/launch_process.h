#pragma once

#include <csignal>
#include <string>
#include <sys/types.h>
#include <vector>

#include "apps/caravan/launch.h"
#include "caravan/comm/job_key.h"

namespace caravan {

/// One rank of a launched job.
struct RankProcess {
  int rank = 0;
  pid_t pid = -1;
  int pid_fd = -1;       ///< readable when the process has ended
  int log_fd = -1;       ///< -1 for rank 0
  std::string log_path;  ///< empty if the log has no name
  bool running = false;
  bool killed = false;  ///< by the launcher
  int wait_status = 0;  ///< as of waitpid, when not running
};

/// How ranks reach the store that the launcher serves.
struct ServedStoreInfo {
  int port = 0;
  JobKey key;  ///< travels in the environment: only the user's own processes can read that
};

/// Starts all ranks of a job; `mask` is the signal mask they get. Kills those already started when one cannot be.
std::vector<RankProcess> start_ranks(const LaunchOptions& options, const ServedStoreInfo& store, const sigset_t& mask);

/// Kills a rank and all it started.
void kill_rank(RankProcess& process) noexcept;

/// If the rank has ended, kills what it left in its process group, reaps it and returns true.
bool reap_rank(RankProcess& process) noexcept;

/// Closes the descriptors.
void release(std::vector<RankProcess>& processes) noexcept;

}  // namespace caravan
