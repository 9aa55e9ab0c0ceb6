#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <span>
#include <string>

#include "caravan/comm/descriptor.h"
#include "caravan/comm/group_seat.h"

namespace caravan {

/// The errors of an operation that cannot end well. Each names `call`, its sequence number and its call site.

/// The ranks' calls do not fit: `fact` names both sides.
std::exception_ptr mismatch_error(const GroupSeat& seat, const Descriptor& call, std::string fact);

/// Another rank failed first, or is lost, as `fact` says.
std::exception_ptr peer_failure_error(const GroupSeat& seat, const Descriptor& call, std::string fact);

/// What `rank` tells the others of the error that it failed with: "rank 2 failed first: ...".
std::string failed_first_text(int rank, const std::exception_ptr& error);

/// `ranks` have destroyed the communicator without coming to `call`.
std::exception_ptr left_error(const GroupSeat& seat, const Descriptor& call, std::span<const int> ranks);

/// What is known of a rank that did not come.
struct LateRank {
  std::string last_call;    ///< what it was last doing
  int stopped_process = 0;  ///< the number of its process, if that is stopped (SIGSTOP, a debugger): it may go on
};

/// `ranks` did not come within `timeout`; `look` says what is known of a rank of the communicator, if given.
std::exception_ptr late_error(const GroupSeat& seat, const Descriptor& call, std::span<const int> ranks,
                              std::chrono::milliseconds timeout, const std::function<LateRank(int rank)>& look);

}  // namespace caravan
