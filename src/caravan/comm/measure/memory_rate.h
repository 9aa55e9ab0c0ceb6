#pragma once

#include <cstdint>

#include "caravan/comm/communicator.h"

namespace caravan::measure {

/// Bandwidth of the memory (of the caches, for small buffers) with all ranks of a host at work, counted as in STREAM:
/// bytes read plus bytes written per second. The best of a few repeats, since it serves as an upper bound.
struct MemoryRates {
  double copy_gb_s = 0;  ///< memcpy
  double add_gb_s = 0;   ///< to[i] += from[i], fp32

  double best_gb_s() const noexcept { return copy_gb_s > add_gb_s ? copy_gb_s : add_gb_s; }
};

/// Every rank uses two own buffers in plain memory, of `bytes` each, at most 1 GiB over all ranks. Called by
/// every rank of `world`, on one host. Takes about 0.1 s, or 0.5 s for 256 MiB.
MemoryRates measure_memory(Communicator& world, int64_t bytes);

}  // namespace caravan::measure
