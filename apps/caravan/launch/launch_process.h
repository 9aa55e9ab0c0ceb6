#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <string>
#include <sys/types.h>
#include <vector>

#include "apps/caravan/launch/launch.h"
#include "caravan/comm/store/secret/job_key.h"

namespace caravan {

/// One rank of a launched job.
struct RankProcess {
  int rank = 0;
  pid_t pid = -1;
  int pid_fd = -1;         ///< readable when the process has ended
  int log_fd = -1;         ///< -1 for rank 0
  int error_fd = -1;       ///< of a file that receives the error that ends the rank; see error_report.h
  std::string log_path{};  ///< empty if the log has no name
  bool running = false;
  bool killed = false;              ///< by the launcher
  int wait_status = 0;              ///< from waitpid, once it is not running
  int64_t peak_resident_bytes = 0;  ///< once it is not running

  /// The error that the rank left in error_fd, "" if none.
  std::string error() const;
};

/// How ranks reach the store that the launcher serves.
struct ServedStoreInfo {
  int port = 0;
  int master_port = 0;  ///< MASTER_PORT, on which the launcher serves nothing
  JobKey key;           ///< passed in the environment, which only the user's own processes can read
};

/// Starts all ranks of a job with the signal mask `mask`. If one cannot be started, kills the others and throws.
/// Afterwards this process adopts orphans of ranks, which init would reap otherwise: see reap_orphans.
std::vector<RankProcess> start_ranks(const LaunchOptions& options, const ServedStoreInfo& store, const sigset_t& mask);

/// Kills a rank and its process group.
void kill_rank(RankProcess& process) noexcept;

/// If the rank has ended, kills the rest of its process group, reaps it and returns true.
bool reap_rank(RankProcess& process) noexcept;

/// Reaps the adopted processes that have ended, so that a long job does not accumulate zombies.
void reap_orphans(const std::vector<RankProcess>& processes) noexcept;

/// After all ranks have ended: waits until the rest of their process groups, which was killed with them, has ended too.
/// Processes that have left their group continue. Returns false if a process still exists after kGroupPatience: the
/// kernel cannot end one that waits for a device before the device answers. SIGCHLD must be blocked, and may be taken
/// from the queue.
bool wait_for_groups(const std::vector<RankProcess>& processes) noexcept;

inline constexpr std::chrono::seconds kGroupPatience{5};

/// Closes the descriptors.
void release(std::vector<RankProcess>& processes) noexcept;

}  // namespace caravan
