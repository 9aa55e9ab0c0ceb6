#pragma once

#include <vector>

#include "caravan/comm/communicator.h"

namespace caravan::measure {

/// One direction between two ranks.
struct Link {
  int from = 0;
  int to = 0;
  double latency_us = 0;      ///< of 8 bytes: half of there and back, `from` begins
  double bandwidth_gb_s = 0;  ///< of 4 MiB there and 8 bytes back
  bool is_right = false;      ///< the bytes came out as they went in
};

/// Times each ordered pair of ranks by send and recv, one after the other. Every rank of `world`; all get the same
/// list, in order of (from, to). Throws what send and recv throw.
std::vector<Link> measure_links(Communicator& world);

}  // namespace caravan::measure
