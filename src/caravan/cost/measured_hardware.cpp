#include "caravan/cost/measured_hardware.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/add.h>
#include <ATen/ops/linspace.h>
#include <fmt/format.h>

#include "caravan/comm/measure/cores.h"
#include "caravan/comm/measure/exercise.h"
#include "caravan/comm/measure/host.h"
#include "caravan/comm/measure/memory_rate.h"
#include "caravan/comm/measure/rates.h"
#include "caravan/comm/measure/sampling.h"
#include "caravan/cost/process_memory.h"

namespace caravan {
namespace {

constexpr double kBlock_s = 0.015;
/// Of 62 recipes on one and two ranks, nine in ten were within 13 % (bench/plan_accuracy.py), on one idle machine.
constexpr double kMeasuredTimeError = 0.15;
constexpr int64_t kCopyBytes = int64_t{64} << 20;  // more than the caches of a core hold
constexpr int64_t kMessageBytes = int64_t{4} << 20;

/// Of an operation on a few numbers.
double launch_seconds(Communicator& world) {
  const at::Tensor a = at::linspace(-1, 1, 64);
  return kernel_seconds(world, [&] { at::add(a, a); });
}

/// A control group may allow less than the host has; 0: unknown.
int64_t memory_of(const measure::HostFacts& facts) {
  if (facts.memory_limit_bytes <= 0) return std::max<int64_t>(facts.memory_bytes, 0);
  return facts.memory_bytes <= 0 ? facts.memory_limit_bytes : std::min(facts.memory_bytes, facts.memory_limit_bytes);
}

}  // namespace

LinkLevel measure_link(Communicator& world) {
  const auto of = [&](Verb verb, int64_t bytes) {
    measure::Exercise exercise(world, {.verb = verb, .bytes = bytes});
    const auto call = [&] { exercise.call(); };
    const measure::SamplingOptions options{.block_s = kBlock_s, .between = {}};
    return measure::time_calls(world, call, exercise.calls_in_one(), options).median_us * 1e-6;
  };
  const double bytes = kMessageBytes;
  const double rate = bytes / of(Verb::send, kMessageBytes);
  const double reduced =
      bytes * measure::bus_factor(Verb::all_reduce, world.size()) / of(Verb::all_reduce, kMessageBytes);
  return {.devices = world.size(),
          .bytes_per_second = four_digits(rate),
          .latency_seconds = four_digits(of(Verb::recv, 8)),
          .fraction = four_digits(std::clamp(reduced / rate, 1e-3, 1.0))};
}

MeasuredHardware measure_hardware(Communicator& world, int threads, const std::string& date,
                                  const MeasureLimits& limits) {
  const Deadline deadline(world, limits.seconds);
  const measure::HostFacts facts = measure::read_host_facts();
  const int64_t memory = memory_of(facts) / world.size();
  const double ranks = world.size();
  const measure::MemoryRates rates = measure::measure_memory(world, kCopyBytes);
  HardwareDevice device{.name = facts.cpu.empty() ? "processor" : facts.cpu,
                        .alias = "cpu",
                        .units = threads,
                        .memory_bytes = std::max<int64_t>(memory, 2),
                        .reserved_bytes = std::min(kProcessBytes, std::max<int64_t>(memory, 2) / 2),
                        .memory_bytes_per_second = four_digits(std::min(rates.copy_gb_s, rates.add_gb_s) * 1e9 / ranks),
                        .launch_seconds = four_digits(launch_seconds(world)),
                        .host_bytes_per_second = four_digits(rates.copy_gb_s / 2 * 1e9 / ranks),
                        .time_error = kMeasuredTimeError,
                        .is_processor = true};
  MeasuredHardware measured{.kernels = time_kernels(world, device, limits.dtypes, deadline)};
  for (MeasuredKernels& own : measured.kernels) {
    ProductRate rate = own.fit.rate;
    rate.flops = four_digits(rate.flops);
    rate.attention = own.attention;
    rate.attention_backward = own.attention_backward;
    device.products.push_back(std::move(rate));
  }
  for (size_t i = 0; i < measured.kernels.size(); ++i) {
    ProductRate& rate = device.products[i];
    MeasuredKernels& own = measured.kernels[i];
    own.step_fit = fit_kernels(device, rate.dtype, own.steps);
    rate.operand_bytes_per_second = four_digits(own.step_fit.operand_bytes_per_second);
    rate.kernel_seconds = four_digits(own.step_fit.kernel_seconds);
    rate.kernel_bytes_per_second = four_digits(own.step_fit.kernel_bytes_per_second);
  }
  LinkLevel level{.name = "host", .devices = 1, .bytes_per_second = device.memory_bytes_per_second};
  if (world.size() > 1) {
    const measure::PinnedThread pinned(measure::usable_cores(), world.rank());
    level = measure_link(world);
    level.name = "host";
  }
  // The memory of the host is that of the devices: there is no other to offload to.
  measured.hardware = {.name = facts.name,
                       .source = fmt::format("measured {} on {}", date, facts.name),
                       .devices = {device},
                       .hosts = {{.device = "cpu",
                                  .devices = world.size(),
                                  .copy_bytes_per_second = four_digits(rates.copy_gb_s / 2 * 1e9)}},
                       .levels = {level}};
  return measured;
}

}  // namespace caravan
