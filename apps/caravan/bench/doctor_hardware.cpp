#include <cmath>
#include <memory>

#include <fmt/format.h>

#include "apps/caravan/bench/doctor_report.h"
#include "apps/caravan/bench/doctor_tiers.h"
#include "apps/caravan/commands.h"
#include "apps/caravan/inspect/recipe_ranks.h"
#include "apps/caravan/launch/ranks.h"
#include "caravan/base/error.h"
#include "caravan/base/runtime.h"
#include "caravan/base/system/cores.h"
#include "caravan/base/system/file.h"
#include "caravan/base/text.h"
#include "caravan/base/time.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/comm/world.h"
#include "caravan/cost/measured_hardware.h"

namespace caravan::app {
namespace {

void refuse_several_hosts(const RankInfo& info) {
  if (info.local_world_size == info.world_size) return;
  throw UsageError({.op = "doctor",
                    .subject = "--hardware",
                    .fact = fmt::format("measures one host, and {} of {} ranks are on others",
                                        info.world_size - info.local_world_size, info.world_size),
                    .action = "run it on one host of each kind, and write the links between hosts into the file"});
}

void add_disks(HostKind& host, const TierFindings& tiers) {
  for (const TierFindings::Disk& disk : tiers.disks) {
    host.disk_read_bytes_per_second += std::round(disk.rates.read_bytes_per_second);
    host.disk_write_bytes_per_second += std::round(disk.rates.write_bytes_per_second);
  }
}

void print_kernels(const MeasuredKernels& measured, const HardwareDevice& device) {
  const ProductRate& rate = *device.product(measured.fit.rate.dtype);
  fmt::print("{}: {:.1f} GFLOP/s, tiles of {} x {}, {} deep beside k; typical error {:.0f} %, worst {:.0f} %\n",
             rate.dtype, rate.flops / 1e9, rate.tile_m, rate.tile_n, rate.ramp_k, 100 * measured.fit.typical_error,
             100 * measured.fit.worst_error);
  for (const TimedProduct& one : measured.products) {
    const double formula = device.launch_seconds + product_seconds(rate, device.units, one.m, one.n, one.k);
    fmt::print("  {:>5} x {:>5} x {:>5}{:>12.1f} GFLOP/s{:>12.1f} by the formula\n", one.m, one.n, one.k,
               one.flops() / one.seconds / 1e9, one.flops() / formula / 1e9);
  }
  const StepFit& fit = measured.step_fit;
  for (const auto& [name, cost] :
       {std::pair("attention", &rate.attention), {"its backward", &rate.attention_backward}}) {
    fmt::print("{} {}: {:.1f} GFLOP/s, and {:.2f} us for each row of queries\n", rate.dtype, name, cost->flops / 1e9,
               1e6 * cost->row_seconds);
  }
  const auto rate_text = [](const char* what, double bytes_per_second) {
    return bytes_per_second > 0 ? fmt::format(", {} {:.2f} GB/s", what, bytes_per_second / 1e9) : "";
  };
  fmt::print("{} layers: a kernel takes {:.1f} us{}{}; typical error {:.0f} %, worst {:.0f} %\n", rate.dtype,
             1e6 * fit.kernel_seconds, rate_text("bytes of others than products at", fit.kernel_bytes_per_second),
             rate_text("operands of products at", fit.operand_bytes_per_second), 100 * fit.typical_error,
             100 * fit.worst_error);
  for (const TimedStep& step : measured.steps) {
    fmt::print("  {:<42}{:>10.2f} ms, {} kernels\n", step.what, 1e3 * step.seconds, step.kernels.size());
  }
}

void print_hardware(const MeasuredHardware& measured, int threads) {
  const Hardware& hardware = measured.hardware;
  const HardwareDevice& device = hardware.devices.front();
  const LinkLevel& level = hardware.levels.front();
  const auto line = [](const char* what, const std::string& value) { fmt::print("  {:<14}{}\n", what, value); };
  fmt::print("hardware {}: {} devices, threads of each {}; all measured at once\n", hardware.name,
             hardware.num_devices(), threads);
  line("device", device.name);
  line("memory", fmt::format("{} a device, {} of it reserved", format_bytes(device.memory_bytes),
                             format_bytes(device.reserved_bytes)));
  line("memory rate", fmt::format("{:.2f} GB/s (read + written); {:.2f} GB/s copying",
                                  device.memory_bytes_per_second / 1e9, device.host_bytes_per_second / 1e9));
  line("launch", fmt::format("{:.2f} us", device.launch_seconds * 1e6));
  if (level.devices > 1) {
    line("link", fmt::format("{:.2f} us, {:.2f} GB/s when all send; an all-reduce reaches {:.0f} % of it",
                             level.latency_seconds * 1e6, level.bytes_per_second / 1e9, 100 * level.fraction));
  }
  for (const MeasuredKernels& kernels : measured.kernels) print_kernels(kernels, device);
}

}  // namespace

int measure_hardware(const DoctorArguments& arguments) {
  plan_ranks(arguments.ranks, "", num_usable_cores());
  const RankInfo info = RankInfo::from_environment();
  refuse_several_hosts(info);
  const auto store = open_store(info);
  TierFindings tiers;
  if (info.rank == 0 && !arguments.disks.empty()) tiers = measure_tiers(arguments.disks);
  const int threads = threads_per_rank(Recipe(), info.local_world_size);
  const Runtime runtime({.intra_op_threads = threads});
  const auto world = make_world(info.world_size > 1 ? "auto" : "thread", info, store);
  MeasuredHardware measured = caravan::measure_hardware(*world, threads, utc_text(now_seconds()).substr(0, 10));
  if (info.rank != 0) return 0;
  add_disks(measured.hardware.hosts.front(), tiers);
  print_hardware(measured, threads);
  if (!tiers.disks.empty()) fmt::print("{}", to_text(tiers));
  write_file_durably(
      arguments.hardware,
      "# What `caravan doctor --hardware` measured; see docs/hardware.md.\n" + to_toml(measured.hardware), "doctor");
  fmt::print("wrote {}\n", arguments.hardware);
  return 0;
}

}  // namespace caravan::app
