#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "caravan/comm/communicator.h"

namespace caravan::measure {

/// A block is a barrier and calls back to back; a sample is the mean time of one call over `calls_per_sample` of them
/// in a row, of the rank that took longest: one call where a call takes 20 us or more, else as many as fill 20 us.
struct SamplingOptions {
  double block_s = 0.4;           ///< a block ends before this, unless one call takes longer
  int num_blocks = 3;             ///< more if they come to less than 5 samples
  std::function<void()> between;  ///< called before the first block and after each, by every rank
};

struct Timing {
  double median_us = 0;
  double p95_us = 0;
  double min_us = 0;
  double max_us = 0;
  int64_t num_samples = 0;
  int64_t calls_per_sample = 1;
};

/// Times `call`, a collective that counts as `calls_in_one` calls. Every rank of `world`; all get the same figures.
Timing time_calls(Communicator& world, const std::function<void()>& call, int calls_in_one,
                  const SamplingOptions& options);

/// Seconds of each sample of one block on this rank, after one barrier.
std::vector<double> time_block(Communicator& world, const std::function<void()>& call, int64_t num_samples,
                               int64_t calls_per_sample);

/// Replaces every value by the largest of all ranks.
void take_slowest(Communicator& world, std::span<double> values);

}  // namespace caravan::measure
