#pragma once

#include <vector>

#include "caravan/comm/communicator.h"

namespace caravan::measure {

/// One direction between two ranks.
struct Link {
  int from = 0;
  int to = 0;
  double latency_us = 0;      ///< half the round trip of 8 bytes; `from` starts
  double bandwidth_gb_s = 0;  ///< 4 MiB one way and 8 bytes back
  bool is_right = false;      ///< the received bytes are correct
};

/// Times send and recv for each ordered pair of ranks, one pair at a time. Called by every rank of `world`; all return
/// the same list, ordered by (from, to). Throws what send and recv throw.
std::vector<Link> measure_links(Communicator& world);

}  // namespace caravan::measure
