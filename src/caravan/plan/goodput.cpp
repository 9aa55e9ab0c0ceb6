#include "caravan/plan/goodput.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace caravan {
namespace {

// What is usual for accelerators.

/// Of one device with its part of the rest: 419 unexpected interruptions in 54 days on 16,384 H100 (The Llama 3 Herd
/// of Models, arXiv 2407.21783, section 3.3.4). Hosts of 8 A100 that fail 6.5 times in 1000 days give 29,500 h (RSC-1;
/// Kokolis et al., arXiv 2410.21680).
constexpr double kUsualMtbf = 50'700 * 3600.0;
/// To find the failure and to start again: below 10 minutes in MegaScale (Jiang et al., arXiv 2402.15627).
constexpr double kUsualRestart = 600;
/// Of a host: 2 TB/s for 2,048 hosts (Llama 3, section 3.3.1: what Tectonic sustains).
constexpr double kUsualStorage = 1e9;

/// Time of steps between checkpoints for which the share of goodput_of is largest. Its derivative is 0 where 1 - t / M
/// = exp(-(t + stops) / M); the left side is larger at 0 and smaller at M.
double best_interval(const FailingRun& run) {
  double low = 0, high = run.mtbf;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    const bool is_below = 1 - middle / run.mtbf > std::exp(-(middle + run.stops) / run.mtbf);
    (is_below ? low : high) = middle;
  }
  return low;
}

struct JobFailures {
  double per_second = 0;
  double slowest_storage_seconds = 0;
  bool assumes_mtbf = false, assumes_storage = false;
};

JobFailures failures_of(const Hardware& hardware, int num_ranks, int64_t rank_bytes) {
  JobFailures job;
  for (const Hardware::UsedHosts& used : hardware.used_hosts(num_ranks)) {
    const double mtbf = used.device->mtbf_seconds;
    job.assumes_mtbf |= mtbf <= 0;
    job.per_second += static_cast<double>(used.num_devices) / (mtbf > 0 ? mtbf : kUsualMtbf);
    const HostKind& host = *used.kind;
    const double given =
        host.storage_bytes_per_second > 0 ? host.storage_bytes_per_second : host.disk_write_bytes_per_second;
    job.assumes_storage |= given <= 0;
    const double bytes = static_cast<double>(used.in_one_host()) * static_cast<double>(rank_bytes);
    job.slowest_storage_seconds = std::max(job.slowest_storage_seconds, bytes / (given > 0 ? given : kUsualStorage));
  }
  return job;
}

bool says_anything(const Hardware& hardware) {
  const auto host_says = [](const HostKind& host) { return host.storage_bytes_per_second > 0; };
  const auto device_says = [](const HardwareDevice& device) { return device.mtbf_seconds > 0; };
  return hardware.restart_seconds > 0 || std::ranges::any_of(hardware.hosts, host_says) ||
         std::ranges::any_of(hardware.devices, device_says);
}

}  // namespace

// Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006): segments of
// t + stops seconds, each repeated until no failure hits it, take M exp(R / M) (exp((t + stops) / M) - 1) each. The
// first order of the best t is Young's sqrt(2 stops M). What is written in the background is not there yet if a failure
// comes while it is written, so that a failure costs that time too.
Goodput goodput_of(const FailingRun& given) {
  constexpr double kNever = 1e12;  // more would be lost in rounding
  FailingRun run = given;
  run.mtbf = std::min(run.mtbf, kNever);
  Goodput found{.stops = run.stops, .writes = run.writes, .mtbf = run.mtbf};
  const double behind = std::max(0.0, run.writes - run.stops);
  const double least = std::max({run.step, behind, best_interval(run)});
  found.steps = std::max<int64_t>(1, std::llround(std::min(std::ceil(least / run.step - 1e-9), 1e15)));
  found.interval = static_cast<double>(found.steps) * run.step;
  const double segment = found.interval + run.stops;
  const double again = run.restart + behind;
  found.lost = again + segment / 2;
  found.share = found.interval / run.mtbf / std::exp(again / run.mtbf) / std::expm1(segment / run.mtbf);
  return found;
}

std::optional<Goodput> goodput_on(const Hardware& hardware, int num_ranks, const CheckpointSize& checkpoint,
                                  double step_seconds, bool is_async) {
  const HardwareDevice& device = hardware.device_of(0);
  if (device.is_processor && !says_anything(hardware)) return std::nullopt;
  const JobFailures job = failures_of(hardware, num_ranks, checkpoint.rank_bytes);
  const double restart = hardware.restart_seconds > 0 ? hardware.restart_seconds : kUsualRestart;
  const double copies = static_cast<double>(checkpoint.rank_bytes) / device.host_bytes_per_second;
  const double writes = job.slowest_storage_seconds;
  Goodput found = goodput_of({.step = step_seconds,
                              .stops = is_async ? std::min(copies, writes) : writes,
                              .writes = writes,
                              .mtbf = 1 / job.per_second,
                              .restart = restart + writes});
  found.total_bytes = checkpoint.total_bytes;
  if (job.assumes_mtbf) found.assumed.push_back(fmt::format("mtbf {:.0f} h a device", kUsualMtbf / 3600));
  if (job.assumes_storage) found.assumed.push_back(fmt::format("storage_rate {:g} GB/s a host", kUsualStorage / 1e9));
  if (hardware.restart_seconds <= 0) found.assumed.push_back(fmt::format("restart {:g} min", kUsualRestart / 60));
  return found;
}

std::string duration_text(double seconds) {
  struct Unit {
    double seconds;
    const char* text;
  };
  for (const Unit& unit : {Unit{365.25 * 86400, "years"}, Unit{86400, "days"}, Unit{3600, "h"}, Unit{60, "min"}}) {
    const double count = seconds / unit.seconds;
    if (count >= 1.5) return fmt::format("{:.{}f} {}", count, count < 10 ? 1 : 0, unit.text);
  }
  return seconds < 1 ? fmt::format("{:.3g} ms", 1e3 * seconds)
                     : fmt::format("{:.{}f} s", seconds, seconds < 10 ? 1 : 0);
}

std::string duration_range_text(double low, double high) {
  const std::string end = duration_text(high);
  std::string begin = duration_text(low);
  const std::string unit = end.substr(end.find(' '));
  if (begin.ends_with(unit)) begin.resize(begin.size() - unit.size());
  return begin + " to " + end;
}

std::string to_text(const Goodput& goodput) {
  const std::string steps = goodput.steps == 1 ? "step" : fmt::format("{} steps", goodput.steps);
  const std::string behind =
      goodput.writes > goodput.stops ? fmt::format(", and {} in the background", duration_text(goodput.writes)) : "";
  return fmt::format("{:.1f} %: a checkpoint each {} ({}) takes {}{}; a failure each {} costs {}", 100 * goodput.share,
                     steps, duration_text(goodput.interval), duration_text(goodput.stops), behind,
                     duration_text(goodput.mtbf), duration_text(goodput.lost));
}

}  // namespace caravan
