#pragma once

#include <chrono>
#include <exception>
#include <span>
#include <string>

#include "caravan/comm/descriptor.h"
#include "caravan/comm/gloo_seat.h"

namespace caravan::gloo {

/// The errors of an operation that cannot end well. Each names `call`, its sequence number and its call site.

/// The ranks' calls do not fit: `fact` names both sides.
std::exception_ptr mismatch_error(const Seat& seat, const Descriptor& call, std::string fact);

/// Another rank failed first, or is lost, as `fact` says.
std::exception_ptr peer_error(const Seat& seat, const Descriptor& call, std::string fact);

/// `ranks` did not come within `timeout`.
std::exception_ptr late_error(const Seat& seat, const Descriptor& call, std::span<const int> ranks,
                              std::chrono::milliseconds timeout);

/// `rank` has destroyed the communicator without coming to `call`.
std::exception_ptr left_error(const Seat& seat, const Descriptor& call, int rank);

/// "rank 3 (world rank 7)".
std::string rank_text(const Seat& seat, int rank);

/// What gloo or c10d says of a connection, without their source line before it and their advice or stack behind it.
std::string plain_fact(std::string fact);

std::string what_went_wrong(const std::exception_ptr& error);

}  // namespace caravan::gloo
