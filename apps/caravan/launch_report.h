#pragma once

#include <string>
#include <vector>

#include "apps/caravan/launch_process.h"

namespace caravan {

/// How a rank that has ended did so.
enum class Ending {
  done,     ///< exit code 0
  stopped,  ///< on request: exit code 130, or the signal that asked for it
  echo,     ///< exit code 4: it lost a peer
  failed,   ///< another exit code, or a signal that nobody asked for
  ended,    ///< by the launcher
};

/// `stop_requested`: the launcher has passed a signal on to the ranks.
Ending ending_of(const RankProcess& process, bool stop_requested) noexcept;

/// 4 for a signal, else the rank's own.
int job_code_of(const RankProcess& process) noexcept;

/// What happened to the job, for people: who failed and how, the end of its log, how the others ended. `in_order` are
/// the ranks that failed, earliest first; `culprit` is one of them.
std::string report(const RankProcess& culprit, const std::vector<const RankProcess*>& in_order, int num_ranks);

}  // namespace caravan
