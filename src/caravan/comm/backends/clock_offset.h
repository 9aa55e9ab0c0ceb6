#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "caravan/comm/communicator.h"

namespace caravan {

/// The offset of this rank's steady clock to that of rank 0.
struct ClockOffset {
  int64_t zero_ns = 0;   ///< on this rank's clock: the time when rank 0 began the exchange
  int64_t error_ns = 0;  ///< upper bound of the error of zero_ns; 0 on the host of rank 0
};

/// Every rank calls it. The ranks with the same `host` share one clock, `now_ns`; the first of each other host asks
/// rank 0 for its time in several rounds. The fastest round counts, and half of it is the error. Clocks of hosts drift
/// apart by some microseconds a second, so repeat it for later measurements. Sends 128 bytes a host in each direction,
/// the hosts' names, and 16 bytes a rank.
ClockOffset clock_offset(Communicator& comm, const std::string& host, const std::function<int64_t()>& now_ns);

}  // namespace caravan
