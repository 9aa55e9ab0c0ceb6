#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "caravan/comm/communicator.h"

namespace caravan::measure {

/// A block is a barrier followed by back-to-back calls. A sample is the mean time of `calls_per_sample` consecutive
/// calls on the slowest rank: as many calls as take 20 us, at least one.
struct SamplingOptions {
  double block_s = 0.4;           ///< upper bound of a block, unless one call takes longer
  int num_blocks = 3;             ///< more if this gives fewer than 5 samples
  std::function<void()> between;  ///< called by every rank before the first block and after each block
};

struct Timing {
  double median_us = 0;
  double p95_us = 0;
  double min_us = 0;
  double max_us = 0;
  int64_t num_samples = 0;
  int64_t calls_per_sample = 1;
};

/// Times `call`, a collective that counts as `calls_in_one` calls. Called by every rank of `world`; all get the same
/// result.
Timing time_calls(Communicator& world, const std::function<void()>& call, int calls_in_one,
                  const SamplingOptions& options);

/// Seconds of each sample of one block, on this rank.
std::vector<double> time_block(Communicator& world, const std::function<void()>& call, int64_t num_samples,
                               int64_t calls_per_sample);

/// Replaces each value by the maximum over all ranks.
void take_slowest(Communicator& world, std::span<double> values);

}  // namespace caravan::measure
