#pragma once

#include <cstdint>

#include "caravan/comm/communicator.h"

namespace caravan::measure {

/// What the memory (or the caches, for small buffers) gives to all ranks of a host together, as STREAM counts it:
/// bytes read plus bytes written, a second. The best of a few repeats, as it is a limit.
struct MemoryRates {
  double copy_gb_s = 0;  ///< memcpy
  double add_gb_s = 0;   ///< to[i] += from[i], fp32

  double best_gb_s() const noexcept { return copy_gb_s > add_gb_s ? copy_gb_s : add_gb_s; }
};

/// Every rank works on two buffers of its own, of `bytes` each, but of at most 1 GiB over all ranks together; in plain
/// memory. Every rank of `world`, on one host; takes about 0.1 s, at 256 MiB half a second.
MemoryRates measure_memory(Communicator& world, int64_t bytes);

}  // namespace caravan::measure
