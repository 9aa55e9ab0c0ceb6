#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/caravan/launch/launch_process.h"

namespace caravan {

/// How a rank ended.
enum class Ending : uint8_t {
  done,           ///< exit code 0
  stopped,        ///< on request: exit code 130, or the signal that asked for it
  lost_peer,      ///< exit code 4: most likely a consequence of another rank's end
  failed,         ///< another exit code, or a signal that was not a request to stop
  out_of_memory,  ///< killed because memory ran out, certainly or probably
  killed,         ///< by the launcher
};

/// The launcher's view of the job.
struct JobFacts {
  int num_ranks = 0;
  bool is_caravan = true;       ///< see LaunchOptions
  bool stop_requested = false;  ///< the launcher has passed a signal on to the ranks
  bool memory_ran_out = false;  ///< the reason of a SIGKILL that the launcher did not send
  bool is_estimated = false;    ///< from the memory that the ranks used: the kernel does not count its kills
};

Ending ending_of(const RankProcess& process, const JobFacts& facts) noexcept;

/// The exit code of a job that this rank ended: its own; 4 for a signal, 5 if it was killed because memory ran out, 141
/// for a closed output (SIGPIPE), as in shells.
int job_code_of(const RankProcess& process, const JobFacts& facts) noexcept;

/// True for the errors of two ranks that differ at most in `where`, which names the rank.
bool is_same_error(const std::string& one, const std::string& other);

/// What happened to the job: the error of `culprit`, or how it ended and the end of its log, once; then a line for each
/// other rank that has more to say. `failures` are the ranks that failed, earliest first; `culprit` is one of them, or
/// rank 0 if it has the same error.
std::string report(const RankProcess& culprit, const std::vector<const RankProcess*>& failures, const JobFacts& facts);

}  // namespace caravan
