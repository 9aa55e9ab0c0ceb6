#include "caravan/cost/hardware_costs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/cost/product_fit.h"

namespace caravan {
namespace {

double bytes_of_dtype(std::string_view dtype) {
  if (dtype == "fp8") return 1;
  return dtype == "fp16" || dtype == "bf16" ? 2 : 4;
}

/// Products of one kernel.
double count_of(const KernelWork& work) { return static_cast<double>(work.batch) * static_cast<double>(work.products); }

/// Seconds of the tiles of a product on an accelerator, of which `rate` FLOP/s are computed by one unit.
double tiled_seconds(const KernelWork& work, const fitted::Tile& tile, double ramp_k, double units, double rate) {
  const auto m = static_cast<double>(work.m), n = static_cast<double>(work.n), k = static_cast<double>(work.k);
  const double share = std::ceil(m / tile.m) * std::ceil(n / tile.n) * count_of(work) / units;
  double waves = std::max(1.0, fitted::kWholeWaves * std::ceil(share) + (1 - fitted::kWholeWaves) * share);
  // Few tiles: libraries cut them along k.
  if (share < 1 && k > fitted::kSplitK) waves = std::max(share, fitted::kSplitK / k);
  return waves * 2 * tile.m * tile.n * (k + ramp_k) / (rate * tile.rate);
}

double accelerator_product(const KernelWork& work, const HardwareDevice& device, const ProductRate& rate) {
  const auto units = static_cast<double>(device.units);
  double best = HUGE_VAL;
  for (const fitted::Tile& tile : fitted::kTiles) {
    for (const fitted::Tile& one : {tile, fitted::Tile{tile.n, tile.m, tile.rate}}) {
      best = std::min(
          best, tiled_seconds(work, one, static_cast<double>(rate.ramp_k), units, rate.flops * fitted::kBoost / units));
    }
  }
  best = std::max(best, work.flops() / (rate.flops * rate.sustained));
  if (work.is_unaligned && bytes_of_dtype(work.dtype) < 4) best /= rate.unaligned;
  return work.batch > 1 ? best / fitted::kBatched : best;
}

/// What any kernel takes besides its work.
double launch_of(const HardwareDevice& device, std::string_view dtype) {
  const ProductRate* rate = device.product(dtype);
  return rate != nullptr && rate->kernel_seconds > 0 ? rate->kernel_seconds : device.launch_seconds;
}

/// That a kernel which only moves bytes reaches.
double bytes_per_second_of(const HardwareDevice& device, const KernelWork& work) {
  const ProductRate* rate = device.product(work.dtype);
  if (rate != nullptr && rate->kernel_bytes_per_second > 0) return rate->kernel_bytes_per_second;
  if (device.is_processor) return device.memory_bytes_per_second;
  const auto* slow = std::ranges::find_if(
      fitted::kSlowKernels, [&](const fitted::SlowKernel& one) { return work.what.starts_with(one.what); });
  return device.memory_bytes_per_second * (slow == fitted::kSlowKernels.end() ? 1 : slow->share);
}

}  // namespace

double product_bytes(const KernelWork& work) noexcept {
  if (work.bytes > 0) return static_cast<double>(work.bytes);
  const auto m = static_cast<double>(work.m), n = static_cast<double>(work.n), k = static_cast<double>(work.k);
  return count_of(work) * bytes_of_dtype(work.dtype) * (m * k + k * n + m * n);
}

double ring_bytes(Verb verb, double bytes, int64_t ranks) noexcept {
  const auto n = static_cast<double>(ranks);
  if (ranks <= 1) return 0;
  switch (verb) {
    case Verb::all_reduce: return 2 * (n - 1) / n * bytes;
    case Verb::all_gather:
    case Verb::reduce_scatter: return (n - 1) / n * bytes;
    case Verb::all_to_all: return (n - 1) / n * bytes / n;
    case Verb::barrier: return 0;
    default: return bytes;
  }
}

HardwareCosts::HardwareCosts(Hardware hardware, fitted::AttentionRate attention)
    : hardware_(std::move(hardware)), attention_(attention) {
  hardware_.device_of(0);
  int64_t first = 0;
  for (const HostKind& host : hardware_.hosts) {
    device_of_host_.push_back(static_cast<size_t>(&hardware_.device_of(first) - hardware_.devices.data()));
    first += host.count * host.devices;
  }
}

const HardwareDevice& HardwareCosts::device_of(int rank) const {
  int64_t end = 0;
  for (size_t i = 0; i < hardware_.hosts.size(); ++i) {
    end += hardware_.hosts[i].count * hardware_.hosts[i].devices;
    if (rank >= 0 && rank < end) return hardware_.devices[device_of_host_[i]];
  }
  return hardware_.device_of(rank);  // throws
}

const ProductRate& HardwareCosts::rate_of(const HardwareDevice& device, std::string_view dtype) {
  // What computes a dtype without units of its own: fp8 in 16 bit, tf32 in fp32.
  static constexpr std::array<std::string_view, 5> kOthers{"fp8", "bf16", "fp16", "tf32", "fp32"};
  if (const ProductRate* rate = device.product(dtype)) return *rate;
  if (device.products.empty()) {
    throw UsageError({.op = "hardware",
                      .subject = device.name,
                      .fact = "has no rate of matrix products",
                      .action = "add e.g. products.fp32 to its description"});
  }
  if (dtype == "fp16" && device.product("bf16") != nullptr) return *device.product("bf16");
  for (auto other = std::ranges::find(kOthers, dtype); other != kOthers.end(); ++other) {
    if (const ProductRate* rate = device.product(*other)) return *rate;
  }
  return device.products.front();
}

double HardwareCosts::seconds(const KernelWork& work, const HardwareDevice& device) const {
  const double launch = launch_of(device, work.dtype);
  if (work.kind == KernelWork::Kind::memory) {
    return static_cast<double>(work.bytes) / bytes_per_second_of(device, work) + launch;
  }
  if (work.flops() <= 0) return launch;
  // Fused attention in fp8 keeps its scores in 16 bit.
  const bool is_attention = work.kind == KernelWork::Kind::attention;
  const ProductRate& rate = rate_of(device, is_attention && work.dtype == "fp8" ? "bf16" : work.dtype);
  if (!is_attention) {
    const double computes = device.is_processor
                                ? product_seconds(rate, device.units, work.m, work.n, work.k, count_of(work))
                                : accelerator_product(work, device, rate);
    const double bytes = product_bytes(work);
    if (rate.operand_bytes_per_second > 0) return computes + bytes / rate.operand_bytes_per_second + launch;
    return std::max(computes, bytes / device.memory_bytes_per_second) + launch;
  }
  const bool is_forward = work.products <= 2;
  const AttentionCost& measured = is_forward ? rate.attention : rate.attention_backward;
  if (measured.flops > 0) {
    const auto rows = static_cast<double>(work.batch) * static_cast<double>(work.m);
    return work.flops() / measured.flops + rows * measured.row_seconds + launch;
  }
  double share = is_forward ? attention_.forward : attention_.backward;
  if (share == 0) {
    const double of_forward = fitted::kFlash2.backward / fitted::kFlash2.forward;
    share = device.attention_fraction * (is_forward || device.is_processor ? 1 : of_forward);
  }
  const double moves = static_cast<double>(work.bytes) / device.memory_bytes_per_second;
  if (device.is_processor) return std::max(work.flops() / (rate.flops * share), moves) + launch;
  const auto keys = static_cast<double>(work.n);
  share *= keys / (keys + fitted::kAttentionRamp);
  return std::max(work.flops() / (rate.flops * rate.sustained * share), moves) + fitted::kAttentionKernels * launch;
}

double HardwareCosts::seconds(const KernelWork& work, int rank) const {
  if (!work.is_on_host) return seconds(work, device_of(rank));
  // Of the host's memory, which its ranks share, each byte is read or written.
  const HostKind& host = hardware_.host_of(rank);
  const double copies = host.copy_bytes_per_second > 0 ? host.copy_bytes_per_second : fitted::kHostCopies;
  return static_cast<double>(work.bytes) / (2 * copies / static_cast<double>(host.devices));
}

RankGroup HardwareCosts::group_of(std::span<const int> ranks) const {
  RankGroup group{.size = static_cast<int64_t>(ranks.size())};
  for (const LinkLevel& level : hardware_.levels) {
    int64_t most = 0, here = 0, domain = -1;
    for (const int rank : ranks) {
      here = rank / level.devices == domain ? here + 1 : 1;
      domain = rank / level.devices;
      most = std::max(most, here);
    }
    group.in_domain.push_back(most);
  }
  return group;
}

RankGroup HardwareCosts::group_of(int64_t size, int64_t stride) const {
  RankGroup group{.size = size};
  for (const LinkLevel& level : hardware_.levels) {
    group.in_domain.push_back(std::min(size, (level.devices - 1) / stride + 1));
  }
  return group;
}

double HardwareCosts::collective_seconds(Verb verb, double sent_bytes, const RankGroup& group,
                                         std::vector<double>* of_level) const {
  if (group.size <= 1 || (sent_bytes <= 0 && verb != Verb::barrier)) return 0;
  const double whole = sent_bytes / std::max(ring_bytes(verb, 1, group.size), 1e-30);
  // All-gathers and reduce-scatters are half of an all-reduce, with two thirds of its overhead.
  const double latencies = verb == Verb::all_reduce ? 1 : 2.0 / 3;
  double seconds = 0;
  int64_t inside = 1;  // ranks in one domain of the level before
  for (size_t i = 0; i < hardware_.levels.size(); ++i) {
    const LinkLevel& level = hardware_.levels[i];
    const int64_t here = group.in_domain[i];
    if (here <= inside) continue;
    if (level.includes_inner) {
      seconds = 0;
      inside = 1;
    }
    const auto neighbours = static_cast<double>(inside);
    const double domains = std::ceil(static_cast<double>(here) / neighbours);
    double rate = level.bytes_per_second * neighbours * level.fraction / level.oversubscription;
    rate /= 1 + level.congestion * std::log2(domains);
    const bool is_summed_by_switch = verb == Verb::all_reduce && here == group.size && here >= fitted::kSwitchRanks;
    if (is_summed_by_switch) rate *= level.reduce_speedup;
    double bytes = sent_bytes;
    if (verb == Verb::all_to_all) {  // each rank has something for each other
      bytes *= neighbours * static_cast<double>(here - inside) / static_cast<double>(group.size - 1);
    }
    const double ramp = level.ramp_bytes > 0 ? 1 + 0.5 * level.ramp_bytes / (whole + level.ramp_bytes) : 1;
    const double busy = bytes / rate * ramp;
    seconds = std::max(seconds, busy + latencies * (level.call_seconds + 2 * level.latency_seconds * (domains - 1)));
    if (of_level != nullptr) {
      of_level->resize(i + 1, 0);
      if (level.includes_inner) std::ranges::fill(*of_level, busy);  // all of them are its links
      of_level->back() = busy;
    }
    inside = here;
  }
  return seconds;
}

double HardwareCosts::skew_seconds(int64_t ranks) const noexcept {
  const bool is_even = ranks <= 1 || hardware_.devices.front().is_processor;
  return is_even ? 0 : fitted::kSkewSeconds * std::log2(static_cast<double>(ranks));
}

double HardwareCosts::message_seconds(double bytes, const RankGroup& two, std::vector<double>* of_level) const {
  for (size_t i = 0; i < hardware_.levels.size(); ++i) {
    const LinkLevel& level = hardware_.levels[i];
    if (!two.is_in_one_domain(i)) continue;
    const bool is_measured = hardware_.devices.front().is_processor;  // by messages
    const double begins = is_measured ? 0 : fitted::kMessageSeconds;
    const double share = is_measured ? 1 : level.fraction;
    const double busy = bytes / (level.bytes_per_second * share / level.oversubscription);
    if (of_level != nullptr) {
      of_level->resize(i + 1, 0);
      of_level->back() = busy;
    }
    return busy + std::max(begins, level.latency_seconds);
  }
  return 0;
}

StepCosts::CallTime HardwareCosts::seconds(const StepTimeline::Call& call, std::span<const int> ranks) const {
  if (ranks.empty()) return {};
  const RankGroup group = group_of(ranks);
  const bool is_message = call.verb == Verb::send || call.verb == Verb::recv;
  std::vector<double> loads;
  const double time = is_message
                          ? message_seconds(call.sent_bytes, group, &loads)
                          : collective_seconds(call.verb, call.sent_bytes, group, &loads) + skew_seconds(group.size);
  // On a processor calls take the time of its cores, one after another.
  if (device_of(ranks.front()).is_processor) return {.seconds = time, .of_device = time};
  for (double& load : loads) load = std::min(1.0, load / time);
  return {.seconds = time, .loads = std::move(loads)};
}

double HardwareCosts::launch_seconds(const KernelWork& work, int rank) const {
  if (device_of(rank).is_processor || work.is_on_host) return 0;
  switch (work.kind) {
    case KernelWork::Kind::product: return fitted::kOwnProductLaunches * fitted::kOwnLaunchSeconds;
    case KernelWork::Kind::attention: return fitted::kAttentionLaunches * fitted::kOwnLaunchSeconds;
    case KernelWork::Kind::memory: break;
  }
  return fitted::kOwnLaunchSeconds;
}

double HardwareCosts::launch_seconds(const StepTimeline::Call& /*call*/, int rank) const {
  return device_of(rank).is_processor ? 0 : fitted::kCallLaunches * fitted::kOwnLaunchSeconds;
}

double HardwareCosts::straggling(int num_ranks) const {
  if (hardware_.devices.front().is_processor) return 0;
  int64_t hosts = 0;
  for (const auto& [kind, device, num_devices] : hardware_.used_hosts(num_ranks)) {
    hosts += (num_devices + kind->devices - 1) / kind->devices;
  }
  return fitted::kJitter * std::log2(static_cast<double>(std::max<int64_t>(1, hosts)));
}

double HardwareCosts::slowdown_beside_calls() const {
  return hardware_.devices.front().is_processor ? 0 : fitted::kSlowdownBesideCalls;
}

}  // namespace caravan
