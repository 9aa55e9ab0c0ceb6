#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/cost/hardware.h"
#include "caravan/cost/quantity.h"

// Units below: TFLOP/s (dense), MiB, GB/s (one direction), microseconds. "sheet" is the vendor's data sheet, "measured"
// the largest products that stas00/ml-engineering (compute/accelerator) reached, "smi" what nvidia-smi shows as total.
// Units are multiprocessors (NVIDIA), compute units (AMD, of one die), or matrix units (TPU). Tiles are those of
// ProductRate: libraries choose among several, so none is exact.

namespace caravan {
namespace {

constexpr double kNvidiaShare = 0.80;   // of the peak, where nothing is measured: of A100, H100, B200 0.87, 0.80, 0.78
constexpr double kAmdShare = 0.55;      // of MI300X and MI325X 0.51 and 0.60
constexpr double kMi200Share = 0.65;    // recalled of Frontier
constexpr double kMemoryShare = 0.865;  // of the sheet's bandwidth
constexpr double kPresetLaunch = 2.3e-6;    // between two kernels on the device, which the host has launched before
constexpr double kPresetRamp = 160;         // in 16 bit, of published steps on A100; a time, so less in fp32
constexpr double kSustained = 0.849;        // of the largest products, in long runs on A100
constexpr double kSustainedHopper = 0.825;  // where power is the limit: H100 and later. A H100 that does nothing but
                                            // products keeps 0.867; with that, NeMo's steps are 3 % too short
constexpr double kUnaligned = 0.34;         // of published steps on A100 with a vocabulary of 50257
constexpr double kUnalignedHopper = 0.16;   // 105 TFLOP/s on H100, where others keep 655
constexpr double kHopper500W = 0.667;       // the same, by the rule that a rate goes with power^0.63
constexpr double kHopper350W = 0.659;       // 350 of 500 W
constexpr double kVoltaShare = 0.72;        // of the peak
constexpr double kRtxShare = 0.9;           // consumer cards sum at half rate, so the units wait less for operands
// Errors of predicted steps, nine times in ten. Of 966 published runs, nearly all on A100 and H100, the ninth decile is
// 11.6 % (docs/design/cost.md). Nothing is published for the others: their errors are assumed.
constexpr double kPublishedError = 0.12;      // chips with published steps
constexpr double kProductsError = 0.2;        // with measured products alone
constexpr double kSheetError = 0.3;           // with a data sheet alone
constexpr int64_t kMostOfChoice = 1'000'000;  // devices of a host, hosts
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kPresetReserved = 1024 * kMiB;  // context 0.5 to 1.2 GiB, buffers of communicators 0.3 and more

/// Links of the devices in a host, or beyond it. `devices` 0: there is none.
struct Wire {
  std::string_view name;
  int64_t devices = 0;
  double gb_s = 0;
  double us = 0;
  double fraction = 1;
  double reduce_speedup = 1;
  double call_us = 30;  ///< usual
  double ramp_mb = 4;
  bool includes_inner = false;
};
struct Wiring {
  std::array<Wire, 3> wires{};  ///< from the inside to the outside; of the last, all that are connected
  bool leaves_host = false;
};

// Fits of wires: HardwareCosts::collective_seconds. Their time for a call and their ramp are fitted too, else usual.
constexpr Wiring kPcie{};
constexpr Wiring kPairs{{{{"pair", 2, 300, 2, 0.66, 1, 40, 0}}}};  // sheet; 2 A100 reach 197 GB/s, out of 300
constexpr Wiring kSmallPairs{{{{"pair", 2, 56, 2.5, 0.8}}}};
// DGX-1: 4 links of 20 GB/s: 1 to most peers, 3 inside a quad.
constexpr Wiring kCubeMesh1{{{{"pair", 2, 20, 4, 0.9, 1, 21, 0},
                              {"quad", 4, 60, 4, 0.85, 1, 21, 0, true},
                              {"nvlink", 8, 80, 4, 0.89, 1, 21, 0, true}}}};
// 6 links of 25 GB/s; measured bus bandwidths 22.6 (2), 85 (4), 134.5 (8).
constexpr Wiring kCubeMesh2{{{{"pair", 2, 25, 4, 0.9, 1, 21, 0},
                              {"quad", 4, 100, 4, 0.855, 1, 21, 0, true},
                              {"nvlink", 8, 150, 4, 0.89, 1, 21, 0, true}}}};
// Hosts of 4 V100 have 2 links between any two; Jean Zay measured 124 GB/s.
constexpr Wiring kQuad2{{{{"pair", 2, 50, 4, 0.9, 1, 21, 0}, {"nvlink", 4, 150, 4, 0.82, 1, 21, 0, true}}}};
constexpr Wiring kSwitch2{{{{"nvlink", 16, 150, 4, 0.89, 1, 21, 0}}}};  // DGX-2; as in a DGX-1
// 2 to 8 A100 measured, from 1 MiB to 1 GiB.
constexpr Wiring kNvlink3{{{{"nvlink", 8, 300, 2, 0.72, 1, 40, 0}}}};
constexpr Wiring kNvlink3Cut{{{{"nvlink", 8, 200, 2, 0.72, 1, 40, 0}}}};
// 8 H100 with NVLS measured, from 1 MiB to 16 GiB. Other collectives are not in our tables.
constexpr Wiring kNvlink4{{{{"nvlink", 8, 450, 0.5, 0.775, 1.3, 14, 64}}}};
constexpr Wiring kNvlink4Cut{{{{"nvlink", 8, 200, 0.5, 0.775, 1.3, 14, 64}}}};
constexpr Wiring kGrace4{{{{"nvlink", 4, 450, 0.5, 0.775, 1, 14, 64}}}};  // no switch
// 8 B200 measured, from 1 MiB to 16 GiB.
constexpr Wiring kNvlink5{{{{"nvlink", 8, 900, 0.5, 0.72, 1.18, 46, 128}}}};
constexpr Wiring kNvlink72{{{{"nvlink", 72, 900, 0.5, 0.72, 1.18, 46, 128}}}, true};
// Two dies of a card have 4 links of 50 GB/s, others 1 or 2: 1 is assumed.
constexpr Wiring kDies{{{{"card", 2, 200, 2.5, 0.75}, {"xgmi", 8, 50, 2.5, 0.75}}}};
// 64 GB/s to each of 7 peers. The fraction is assumed.
constexpr Wiring kMesh{{{{"pair", 2, 64, 2.5, 0.75},
                         {"quad", 4, 192, 2.5, 0.75, 1, 30, 4, true},
                         {"xgmi", 8, 448, 2.5, 0.75, 1, 30, 4, true}}}};
// Tori of a pod. Latency and fraction are assumed.
constexpr Wiring kTorus2{{{{"ici", 256, 62, 2, 0.75}}}, true};
constexpr Wiring kTorus3{{{{"ici", 1024, 82, 2, 0.75}}}, true};
constexpr Wiring kTorus4{{{{"ici", 4096, 150, 2, 0.75}}}, true};
// The network between hosts: 4 x 8 B200 and published steps on many hosts.
constexpr double kNetworkUs = 3, kNetworkFraction = 0.95, kNetworkCallUs = 60, kNetworkRampMb = 40,
                 kNetworkCongestion = 0.03;

/// Where such devices usually are. A copy reads and writes, so its rate is 0.8 / 2 of the memory's.
struct UsualHost {
  double nic_gb_s = 0;          ///< of a device; 0: there is no usual host
  double nics_gb_s = HUGE_VAL;  ///< of all devices of a host
  int64_t devices = 0;          ///< with which it has the following; 0: unknown
  int64_t memory_gib = 0;
  double memory_gb_s = 0;
  double disk_read_gb_s = 0;
  double disk_write_gb_s = 0;
};
constexpr UsualHost kNoHost{};
constexpr UsualHost kDgx1{12.5, 50, 8, 512, 154};             // 4 x 100 Gb/s; hosts of 4 V100 have as much (Jean Zay)
constexpr UsualHost kDgx2{12.5, 100, 16, 1536, 260, 28, 25};  // 8 x 100 Gb/s; disks: ZeRO-Infinity
constexpr UsualHost kDgxA100{25, HUGE_VAL, 8, 2048, 380};
constexpr UsualHost kDgxH100{50, HUGE_VAL, 8, 2048, 614};
constexpr UsualHost kFourHundred{50};    // 400 Gb/s a device, as AWS p6-B200
constexpr UsualHost kEightHundred{100};  // ConnectX-8
constexpr UsualHost kTofu{6.8};
constexpr UsualHost kFrontier{12.5, 100};  // 4 x 200 Gb/s for 8 dies

/// What products and attention reach does not depend on the memory. TFLOP/s.
struct Chip {
  int64_t units = 0;
  double fp32 = 0, tf32 = 0, fp16 = 0, bf16 = 0, fp8 = 0;
  double measured_bf16 = 0, measured_fp8 = 0;  ///< 0: not measured
  double attention = 0.5;
  double share = kNvidiaShare;
  double sustained = kSustained;
  double unaligned = kUnaligned;
  double time_error = 0;  ///< 0: kProductsError or kSheetError
};
// FlashAttention 2 reaches 0.7 of what products reach on A100; torch's attention 0.81 on H100, for heads of 128 and
// long sequences (heads of 64: 0.47).
constexpr double kAmpere = 0.7, kHopper = 0.8;

constexpr Chip kP100{56, 10.6, 0, 21.2};                                   // sheet
constexpr Chip kV100{80, 15.7, 0, 125, 0, 0, 0, 0, 0.5, kVoltaShare};      // sheet; no bf16
constexpr Chip kV100Sxm3{80, 16.4, 0, 130, 0, 0, 0, 0, 0.5, kVoltaShare};  // about 130 in a DGX-2
constexpr Chip kV100Pcie{80, 14, 0, 112, 0, 0, 0, 0, 0.5, kVoltaShare};    // sheet
constexpr Chip kT4{40, 8.1, 0, 65, 0, 0, 0, 0, 0.5, 0.5};                  // sheet
/// A chip of published steps.
constexpr Chip published(Chip chip) {
  chip.time_error = kPublishedError;
  return chip;
}
constexpr Chip kA100 = published({108, 19.5, 156, 312, 312, 0, 271.2, 0, kAmpere});  // sheet, measured
constexpr Chip kA100Pcie{108, 19.5, 156, 312, 312, 0, 252.9, 0, kAmpere};            // sheet, measured
constexpr Chip hopper(Chip chip, double sustained = kSustainedHopper) {
  chip.attention = kHopper;
  chip.sustained = sustained;
  chip.unaligned = kUnalignedHopper;
  return chip;
}
constexpr Chip kH100 =
    published(hopper({132, 67, 494.5, 989, 989, 1979, 794.5, 1453.4}));                 // sheet, measured; fp8 on H200
constexpr Chip kH20{78, 44, 74, 148, 148, 296, 0, 0, kHopper, 0.92, kSustainedHopper};  // sheet
constexpr Chip kH100Slow = published(hopper({132, 67, 494.5, 989, 989, 1979}, kHopper500W));  // sheet, at 500 W
constexpr Chip kH100Pcie = hopper({114, 51, 378, 756, 756, 1513}, kHopper350W);               // sheet
constexpr Chip kGh200 = hopper({132, 67, 494.5, 989, 989, 1979, 828.6});  // sheet, measured with 141 GB
constexpr Chip kB200{148, 80, 1125, 2250, 2250, 4500, 1745, 3432.5, 0.5, 0.8, kSustainedHopper};  // sheet, measured
constexpr Chip kB300{148, 80, 1125, 2250, 2250, 4500, 1769, 0, 0.5, 0.8, kSustainedHopper};       // sheet, measured
constexpr Chip kGb200{
    152, 80, 1250, 2500, 2500, 5000, 1822, 0, 0.5, 0.8, kSustainedHopper};  // sheet, measured; assumed for GB300
constexpr Chip kMi250{104, 22.65, 0, 181, 181, 0, 0, 0, 0.5, kMi200Share};  // half the sheet: one of two dies
constexpr Chip kMi250x{110, 23.95, 0, 191.5, 191.5, 0, 0, 0, 0.5, kMi200Share};
constexpr Chip kMi300x{304, 163.4, 653.7, 1307, 1307, 2614, 668.4, 0, 0.5, kAmdShare};  // sheet, measured
constexpr Chip kMi325x{304, 163.4, 653.7, 1307, 1307, 2614, 784.9, 0, 0.5, kAmdShare};  // sheet, measured
// White papers, with fp32 accumulation.
constexpr Chip kRtx3090{82, 35.6, 35.6, 71, 71, 0, 0, 0, kAmpere, kRtxShare};
constexpr Chip kRtx4090{128, 82.6, 82.6, 165, 165, 330, 0, 0, kAmpere, kRtxShare};
constexpr Chip kRtx5090{170, 104.8, 104.8, 209.5, 209.5, 419, 0, 0, kAmpere, kRtxShare};
constexpr Chip kA6000{84, 38.7, 77.4, 154.8, 154.8, 0, 0, 0, kAmpere};     // sheet
constexpr Chip kL40s{142, 91.6, 183, 362, 362, 733, 0, 0, kAmpere, 0.65};  // sheet
// Google's documents; units are matrix units of 128 x 128 of a chip.
constexpr Chip kTpu2{2, 0, 0, 0, 46}, kTpu3{4, 0, 0, 0, 123, 0, 0, 0, 0.5, 0.85};
constexpr Chip kTpu4{8, 0, 0, 0, 275, 0, 0, 0, 0.5, 0.9}, kTpu5e{4, 0, 0, 0, 197, 0, 0, 0, 0.5, 0.9};
constexpr Chip kTpu5p{8, 0, 0, 0, 459, 0, 0, 0, 0.5, 0.9};
constexpr Chip kA64fx{48, 6.8, 0, 13.5, 0, 0, 0, 0, 0.5, 0.7};  // sheet; a processor that is used as an accelerator

// GB/s to host memory: PCIe with 16 lanes as it is used, and 0.85 of the sheet's link of Grace (of 450, and of half).
constexpr double kPcie3 = 12, kPcie4 = 25, kPcie5 = 50, kPcie6 = 100, kGrace = 380, kHalfGrace = 190;

struct Preset {
  std::string_view alias;
  std::string_view name;
  const Chip& chip;
  int64_t memory_mib = 0;  ///< smi, else sheet
  double memory_gb_s = 0;  ///< sheet
  double host_gb_s = 0;
  const Wiring& wiring = kPcie;
  const UsualHost& usual = kNoHost;
};

constexpr Preset kPresets[] = {
    {"p100", "P100-16GB SXM", kP100, 16280, 732, kPcie3, kCubeMesh1, kDgx1},
    {"v100-16", "V100-16GB SXM2", kV100, 16160, 900, kPcie3, kCubeMesh2, kDgx1},
    {"v100-32", "V100-32GB SXM2", kV100, 32510, 900, kPcie3, kCubeMesh2, kDgx1},
    {"v100-32-dgx2", "V100-32GB SXM3", kV100Sxm3, 32510, 980, kPcie3, kSwitch2, kDgx2},
    {"v100-16-pcie", "V100-16GB PCIe", kV100Pcie, 16160, 900, kPcie3},
    {"v100-32-pcie", "V100-32GB PCIe", kV100Pcie, 32510, 900, kPcie3},
    {"t4", "T4-16GB", kT4, 15360, 320, kPcie3},
    {"a100-40", "A100-40GB SXM4", kA100, 40536, 1555, kPcie4, kNvlink3, kDgxA100},
    {"a100-80", "A100-80GB SXM4", kA100, 81251, 2039, kPcie4, kNvlink3, kDgxA100},
    {"a100-40-pcie", "A100-40GB PCIe", kA100Pcie, 40536, 1555, kPcie4, kPairs},
    {"a100-80-pcie", "A100-80GB PCIe", kA100Pcie, 81251, 1935, kPcie4, kPairs},
    {"a800-80", "A800-80GB SXM", kA100, 81251, 2039, kPcie4, kNvlink3Cut, kDgxA100},
    {"h100-80", "H100-80GB SXM5", kH100, 81559, 3350, kPcie5, kNvlink4, kDgxH100},
    {"h100-96", "H100-96GB SXM", kH100Slow, 97280, 2400, kPcie5, kNvlink4, kDgxH100},  // torch reports 95.0 GiB
    {"h100-80-pcie", "H100-80GB PCIe", kH100Pcie, 81559, 2000, kPcie5, kPairs},
    {"h800-80", "H800-80GB SXM", kH100, 81559, 3350, kPcie5, kNvlink4Cut, kDgxH100},
    {"h20", "H20-96GB SXM", kH20, 97871, 4000, kPcie5, kNvlink4, kDgxH100},
    {"h200", "H200-141GB SXM", kH100, 143771, 4800, kPcie5, kNvlink4, kDgxH100},
    {"gh200-96", "GH200-96GB", kGh200, 91552, 4000, kGrace, kGrace4, kFourHundred},
    {"gh200-141", "GH200-141GB", kGh200, 134468, 4800, kGrace, kGrace4, kFourHundred},
    {"b200", "B200-180GB SXM", kB200, 171661, 8000, kPcie5, kNvlink5, kFourHundred},
    {"gb200", "GB200-186GB", kGb200, 177383, 8000, kHalfGrace, kNvlink72, kFourHundred},
    {"b300", "B300-288GB SXM", kB300, 274658, 8000, kPcie6, kNvlink5, kEightHundred},
    {"gb300", "GB300-288GB", kGb200, 274658, 8000, kHalfGrace, kNvlink72, kEightHundred},
    {"mi250", "MI250, one of two dies", kMi250, 65536, 1638.5, kPcie4, kDies, kFrontier},
    {"mi250x", "MI250X, one of two dies", kMi250x, 65536, 1638.5, kPcie4, kDies, kFrontier},
    {"mi300x", "MI300X-192GB", kMi300x, 196608, 5300, kPcie5, kMesh, kFourHundred},
    {"mi325x", "MI325X-256GB", kMi325x, 262144, 6000, kPcie5, kMesh, kFourHundred},
    {"rtx-3090", "RTX 3090", kRtx3090, 24576, 936, kPcie4, kSmallPairs},
    {"rtx-4090", "RTX 4090", kRtx4090, 24564, 1008, kPcie4},
    {"rtx-5090", "RTX 5090", kRtx5090, 32607, 1792, kPcie5},
    {"a6000", "RTX A6000", kA6000, 49140, 768, kPcie4, kSmallPairs},
    {"l40s", "L40S", kL40s, 46068, 864, kPcie4},
    {"tpu-v2", "TPU v2", kTpu2, 16384, 700, kPcie3, kTorus2},  // by the chip; the link to the host is assumed
    {"tpu-v3", "TPU v3", kTpu3, 32768, 900, kPcie3, kTorus3},
    {"tpu-v4", "TPU v4", kTpu4, 32768, 1200, kPcie3, kTorus4},
    {"tpu-v5e", "TPU v5e", kTpu5e, 16384, 819, kPcie3, kTorus2},
    {"tpu-v5p", "TPU v5p", kTpu5p, 97280, 2765, kPcie3, kTorus4},
    {"a64fx", "A64FX", kA64fx, 32768, 1024, kPcie3, kPcie, kTofu},
};

const Preset* find_preset(std::string_view name) {
  const auto found =
      std::ranges::find_if(kPresets, [&](const Preset& one) { return one.alias == name || one.name == name; });
  return found == std::end(kPresets) ? nullptr : found;
}

/// A number of TFLOP/s or GB/s with three digits after the point, so that it is a short text.
double rounded(double value, double unit) { return std::round(value * 1e3) * (unit / 1e3); }
/// What is computed from an assumed share has four digits at most.
double four_digits_of(double value) {
  const double last = std::pow(10, std::floor(std::log10(value)) - 3);
  return std::round(value / last) * last;
}

HardwareDevice preset_kind(const Preset& preset) {
  const Chip& chip = preset.chip;
  HardwareDevice device{.name = std::string(preset.name),
                        .alias = std::string(preset.alias),
                        .units = chip.units,
                        .attention_fraction = chip.attention,
                        .memory_bytes = preset.memory_mib * kMiB,
                        .reserved_bytes = kPresetReserved,
                        .memory_bytes_per_second = rounded(kMemoryShare * preset.memory_gb_s, 1e9),
                        .launch_seconds = kPresetLaunch,
                        .host_bytes_per_second = preset.host_gb_s * 1e9,
                        .time_error = chip.time_error > 0      ? chip.time_error
                                      : chip.measured_bf16 > 0 ? kProductsError
                                                               : kSheetError};
  const double share = chip.measured_bf16 > 0 ? chip.measured_bf16 / chip.bf16 : chip.share;
  const double of_half = std::max(chip.fp16, chip.bf16);
  const auto add = [&](const char* dtype, double peak, double measured) {
    if (peak == 0) return;
    device.products.push_back({.dtype = dtype,
                               .peak_flops = rounded(peak, 1e12),
                               .flops = rounded(measured > 0 ? measured : four_digits_of(share * peak), 1e12),
                               .ramp_k = std::llround(kPresetRamp * std::min(1.0, peak / of_half)),
                               .sustained = chip.sustained,
                               .unaligned = chip.unaligned});
  };
  add("fp32", chip.fp32, 0);
  add("tf32", chip.tf32, 0);
  add("fp16", chip.fp16, 0);
  add("bf16", chip.bf16, chip.measured_bf16);
  add("fp8", chip.fp8, chip.measured_fp8);
  return device;
}

[[noreturn]] void refuse_choice(const std::string& subject, const std::string& fact, const std::string& action) {
  throw UsageError({.op = "hardware", .subject = subject, .fact = fact, .action = action});
}

LinkLevel level_of_wire(const Wire& wire, int64_t devices) {
  return {.name = std::string(wire.name),
          .devices = devices,
          .bytes_per_second = wire.gb_s * 1e9,
          .latency_seconds = std::round(wire.us * 1e3) / 1e9,
          .fraction = wire.fraction,
          .reduce_speedup = wire.reduce_speedup,
          .call_seconds = std::round(wire.call_us * 1e3) / 1e9,
          .ramp_bytes = wire.ramp_mb * 1e6,
          .includes_inner = wire.includes_inner};
}

/// Levels of the links of a host's devices, or of a domain of hosts, in which `all` devices are connected or fewer.
std::vector<LinkLevel> inner_levels(const Preset& preset, const HardwareChoice& choice) {
  const int64_t all = choice.per_host * choice.hosts;
  const Wiring& wiring = &preset.wiring == &kCubeMesh2 && choice.per_host <= 4 ? kQuad2 : preset.wiring;
  int64_t most = 0;
  for (const Wire& wire : wiring.wires) most = std::max(most, wire.devices);
  const bool is_pairs = most == 2;
  if (!is_pairs && most > 0 && choice.per_host > most) {
    refuse_choice(fmt::format("{} of {} in a host", choice.per_host, preset.alias),
                  fmt::format("their links connect at most {}", most),
                  fmt::format("use hosts of {} or fewer, and more of them", most));
  }
  // A domain that leaves its host has whole hosts.
  const int64_t outermost = wiring.leaves_host
                                ? std::min(all, std::max(most / choice.per_host, int64_t{1}) * choice.per_host)
                                : choice.per_host;
  std::vector<LinkLevel> levels;
  for (const Wire& wire : wiring.wires) {
    const int64_t devices = wire.devices == most && !is_pairs ? outermost : wire.devices;
    const bool nests = outermost % std::max<int64_t>(devices, 1) == 0;
    if (wire.devices > 0 && devices > 1 && devices <= outermost && nests &&
        (levels.empty() || devices > levels.back().devices)) {
      levels.push_back(level_of_wire(wire, devices));
    }
  }
  // What no link connects goes over PCIe, through the host's memory.
  if (levels.empty() ? all == 1 || outermost > 1 : levels.back().devices < outermost) {
    levels.push_back(level_of_wire({"host", 0, preset.host_gb_s, 2.5, 0.6}, outermost));
  }
  return levels;
}

double link_rate(const Preset& preset, const HardwareChoice& choice) {
  if (choice.link.empty())
    return std::min(preset.usual.nic_gb_s, preset.usual.nics_gb_s / static_cast<double>(choice.per_host)) * 1e9;
  const bool is_whole = choice.link.ends_with("/s") || choice.link.ends_with("ps");  // 200Gb/s, 200Gbps
  const std::string text = is_whole ? choice.link : choice.link + "/s";
  const auto rate = parse_quantity(text, Quantity::bytes_per_second);
  if (!rate || !(*rate > 0)) {
    refuse_choice("link", fmt::format("'{}' is not a rate", choice.link),
                  "write what one device has to other hosts, a second: 200Gb or 200Gbps (bits), or 25GB (bytes)");
  }
  return *rate;
}

void check_choice(const HardwareChoice& choice) {
  const auto check = [](const char* what, int64_t number) {
    if (number < 1 || number > kMostOfChoice) {
      refuse_choice(what, fmt::format("{} is not a number from 1 to 1000000", number), "use 1 or more");
    }
  };
  check("devices of a host", choice.per_host);
  check("hosts", choice.hosts);
  if (choice.per_host * choice.hosts > INT32_MAX) {
    refuse_choice("hosts", fmt::format("{} x {} devices are too many", choice.hosts, choice.per_host), "use fewer");
  }
}

HostKind host_of_choice(const Preset& preset, const HardwareChoice& choice) {
  HostKind host{.count = choice.hosts, .device = std::string(preset.alias), .devices = choice.per_host};
  const UsualHost& usual = preset.usual;
  if (choice.per_host != usual.devices) return host;
  host.memory_bytes = usual.memory_gib << 30;
  host.copy_bytes_per_second = rounded(0.8 / 2 * usual.memory_gb_s, 1e9);
  host.disk_read_bytes_per_second = usual.disk_read_gb_s * 1e9;
  host.disk_write_bytes_per_second = usual.disk_write_gb_s * 1e9;
  return host;
}

}  // namespace

std::vector<std::string> hardware_presets() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.alias);
  return names;
}

std::optional<HardwareDevice> preset_device(std::string_view name) {
  const Preset* preset = find_preset(name);
  return preset == nullptr ? std::nullopt : std::optional(preset_kind(*preset));
}

int64_t most_in_host(std::string_view device) {
  const Preset* preset = find_preset(device);
  int64_t most = 0;
  for (const Wire& wire : preset == nullptr ? kPcie.wires : preset->wiring.wires) most = std::max(most, wire.devices);
  return most <= 2 ? kMostOfChoice : most;
}

bool has_usual_network(std::string_view device) {
  const Preset* preset = find_preset(device);
  return preset != nullptr && preset->usual.nic_gb_s > 0;
}

Hardware preset_hardware(const HardwareChoice& choice) {
  const Preset* preset = find_preset(choice.device);
  if (preset == nullptr) {
    refuse_choice("device", not_one_of(choice.device, hardware_presets()), "name one of them, or write a file");
  }
  check_choice(choice);
  const int64_t all = choice.per_host * choice.hosts;
  const double link = link_rate(*preset, choice);
  Hardware hardware{
      .name = fmt::format("{} x {} {}", choice.hosts, choice.per_host, preset->name),
      .source = "preset",
      .devices = {preset_kind(*preset)},
      .hosts = {host_of_choice(*preset, choice)},
      .levels = inner_levels(*preset, choice),
  };
  hardware.devices.front().price_per_hour = choice.price_per_hour;
  if (!hardware.levels.empty() && hardware.levels.back().devices == all) return hardware;
  if (link == 0) {
    refuse_choice("link", fmt::format("{} has no usual network between hosts", preset->alias),
                  "give the rate of one device to other hosts: 200Gb (bits) or 25GB (bytes) a second");
  }
  hardware.levels.push_back(
      level_of_wire({"cluster", 0, link / 1e9, kNetworkUs, kNetworkFraction, 1, kNetworkCallUs, kNetworkRampMb}, all));
  hardware.levels.back().congestion = kNetworkCongestion;
  return hardware;
}

}  // namespace caravan
