#include "caravan/comm/measure/sampling.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "caravan/comm/measure/statistics.h"

namespace caravan::measure {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLeastSample_s = 20e-6;  // reading the clock takes 25 ns, about a thousandth
constexpr double kEstimate_s = 2e-3;      // long enough to estimate the time of a call within a few percent
constexpr int64_t kMostCalls = 1 << 20;   // of an estimate
constexpr double kMostSamples = 5000;     // of a block
constexpr int64_t kFewestSamples = 5;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// Estimates the seconds of a call; the same value on every rank. Also warms up.
double estimate(Communicator& world, const std::function<void()>& call) {
  for (int64_t num_calls = 1;; num_calls *= 4) {
    world.barrier();
    const auto begin = Clock::now();
    for (int64_t i = 0; i < num_calls; ++i) call();
    double taken = seconds_since(begin);
    take_slowest(world, {&taken, 1});
    if (taken >= kEstimate_s || num_calls >= kMostCalls) return taken / static_cast<double>(num_calls);
  }
}

}  // namespace

void take_slowest(Communicator& world, std::span<double> values) {
  const Buffer buffer{values.data(), static_cast<int64_t>(values.size()), Dtype::fp64};
  world.all_reduce(buffer, buffer, ReduceOp::max, "slowest rank");
}

std::vector<double> time_block(Communicator& world, const std::function<void()>& call, int64_t num_samples,
                               int64_t calls_per_sample) {
  std::vector<double> samples(static_cast<size_t>(num_samples));
  world.barrier();
  auto begin = Clock::now();
  for (double& sample : samples) {
    for (int64_t i = 0; i < calls_per_sample; ++i) call();
    const auto end = Clock::now();
    sample = std::chrono::duration<double>(end - begin).count();
    begin = end;
  }
  return samples;
}

Timing time_calls(Communicator& world, const std::function<void()>& call, int calls_in_one,
                  const SamplingOptions& options) {
  const double one = std::max(estimate(world, call), 1e-9);
  Timing timing;
  timing.calls_per_sample = std::max<int64_t>(1, std::llround(std::ceil(kLeastSample_s / one)));
  const double sample_s = one * static_cast<double>(timing.calls_per_sample);
  const auto per_block = static_cast<int64_t>(std::clamp(0.9 * options.block_s / sample_s, 1.0, kMostSamples));
  const int64_t num_blocks = std::max<int64_t>(options.num_blocks, (kFewestSamples + per_block - 1) / per_block);
  std::vector<double> all;
  if (options.between) options.between();
  for (int64_t block = 0; block < num_blocks; ++block) {
    call();
    std::vector<double> samples = time_block(world, call, per_block, timing.calls_per_sample);
    take_slowest(world, samples);
    all.insert(all.end(), samples.begin(), samples.end());
    if (options.between) options.between();
  }
  timing.calls_per_sample *= calls_in_one;
  for (double& sample : all) sample *= 1e6 / static_cast<double>(timing.calls_per_sample);
  timing.num_samples = static_cast<int64_t>(all.size());
  timing.median_us = quantile(all, 0.5);
  timing.p95_us = quantile(all, 0.95);
  timing.min_us = quantile(all, 0);
  timing.max_us = quantile(all, 1);
  return timing;
}

}  // namespace caravan::measure
