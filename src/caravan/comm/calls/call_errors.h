#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <span>
#include <string>

#include "caravan/comm/backends/peer_failure.h"
#include "caravan/comm/calls/descriptor.h"
#include "caravan/comm/group_info.h"

namespace caravan {

/// The errors of an operation that fails. Each names `call`, its sequence number and its call site.

/// The ranks' calls differ: `fact` names both sides.
std::exception_ptr mismatch_error(const GroupInfo& group, const Descriptor& call, std::string fact);

/// The calls of the two sides of a message, `sent` and `received`, differ in dtype, size or label; null if they match.
/// A call without a label matches every label.
std::exception_ptr message_error(const GroupInfo& group, const Descriptor& sent, int sender, const Descriptor& received,
                                 int receiver, bool compares_labels);

/// Another rank failed first, or is lost: `fact` says which and why.
std::exception_ptr peer_failure_error(const GroupInfo& group, const Descriptor& call, std::string fact,
                                      FailureScope scope);

/// What `rank` publishes about its error: "rank 2 failed first: ...".
std::string failed_first_text(int rank, const std::exception_ptr& error);

/// `ranks` have destroyed the communicator without issuing `call`.
std::exception_ptr left_error(const GroupInfo& group, const Descriptor& call, std::span<const int> ranks);

/// What is known about a late rank.
struct LateRank {
  std::string last_call;    ///< a description of what it was last doing
  int stopped_process = 0;  ///< the id of its process if that is stopped (SIGSTOP, a debugger) and may continue
};

/// `ranks` did not issue `call` within `timeout`. `look`, which may be empty, returns what is known about a rank.
std::exception_ptr late_error(const GroupInfo& group, const Descriptor& call, std::span<const int> ranks,
                              std::chrono::milliseconds timeout, const std::function<LateRank(int rank)>& look);

}  // namespace caravan
