#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace caravan {

/// Fused attention of one dtype, in one direction: FLOPs at a rate, and seconds for each row of queries.
struct AttentionCost {
  double flops = 0;  ///< FLOP/s; 0: unknown
  double row_seconds = 0;

  bool operator==(const AttentionCost&) const = default;
};

/// Matrix products of one dtype on a device. A product m x n x k is computed tile by tile, as many at once as the
/// device has units: ceil(tiles / units) waves of 2 tile_m tile_n (k + ramp_k) FLOPs a unit, each at flops / units.
/// Libraries of accelerators choose among several tiles (HardwareCosts).
struct ProductRate {
  std::string dtype{};    ///< of the operands: "fp32", "tf32", "fp16", "bf16", "fp8"
  double peak_flops = 0;  ///< FLOP/s of the data sheet, dense; 0: unknown (a measured device)
  double flops = 0;       ///< FLOP/s that large products reach
  int64_t tile_m = 128;
  int64_t tile_n = 128;
  int64_t ramp_k = 64;                 ///< depth that a tile costs beside k: its begin and end
  double sustained = 1;                ///< of `flops`, that a long run keeps under its limit of power
  double unaligned = 0.34;             ///< of `flops`, in 16 bit and less (KernelWork::is_unaligned)
  double kernel_bytes_per_second = 0;  ///< that other kernels of this dtype reach; 0: that of the device's memory
  double kernel_seconds = 0;           ///< that any kernel in this dtype takes besides; 0: the device's launch
  /// At which operands and results of products move, before and after the product; 0: they move beside it, at the rate
  /// of the device's memory. Products that are measured alone have their operands in a cache, those of a step have not.
  double operand_bytes_per_second = 0;
  AttentionCost attention{}, attention_backward{};  ///< unknown: HardwareDevice::attention_fraction

  bool operator==(const ProductRate&) const = default;
};

/// One kind of device, and what its own memory does. Bytes, seconds, FLOP/s.
struct HardwareDevice {
  std::string name{};   ///< "A100-80GB SXM4"
  std::string alias{};  ///< "a100-80", for command lines
  int64_t units = 1;    ///< that compute tiles at once: multiprocessors, cores
  std::vector<ProductRate> products{};
  double attention_fraction = 0.5;  ///< of ProductRate::flops, that fused attention reaches
  int64_t memory_bytes = 0;
  int64_t reserved_bytes = 0;          ///< of these, what the runtime and libraries take
  double memory_bytes_per_second = 0;  ///< that kernels reach
  double launch_seconds = 0;           ///< of one kernel
  double host_bytes_per_second = 0;    ///< to or from host memory, one direction
  double price_per_hour = 0;           ///< of one device; 0: unknown
  /// Between two failures that end a job, of a device with its part of the host and of the network; 0: unknown.
  double mtbf_seconds = 0;
  double time_error = 0.3;  ///< share by which steps on such devices differ from their predictions, nine times in ten
  /// Cores of a host: products have no other tile than ProductRate says, and collectives take the time of the cores.
  bool is_processor = false;

  /// Nothing if the device has no products of this dtype.
  const ProductRate* product(std::string_view dtype) const noexcept;
  bool operator==(const HardwareDevice&) const = default;
};

/// Links between devices that are in one domain of this level and in different domains of the level before.
struct LinkLevel {
  std::string name{};           ///< "pair", "nvlink", "host", "rack", "cluster"
  int64_t devices = 0;          ///< in a domain; the last level has all
  double bytes_per_second = 0;  ///< of one device, one direction, when all devices of its domain send
  double latency_seconds = 0;   ///< of one message
  double fraction = 1;          ///< of bytes_per_second, that collectives reach
  double reduce_speedup = 1;    ///< of all-reduces that the network itself sums
  double oversubscription = 1;  ///< bytes_per_second is divided by this when all domains send outwards at once
  double call_seconds = 0;      ///< of a collective, whatever its size
  double ramp_bytes = 0;  ///< collectives of so many bytes take a quarter longer than at the rate, small ones half
  double congestion = 0;  ///< bytes_per_second is divided by 1 + this for each doubling of the domains inside
  bool includes_inner = false;  ///< a mesh: bytes_per_second counts the links of the levels inside too

  bool operator==(const LinkLevel&) const = default;
};

/// `count` equal hosts.
struct HostKind {
  int64_t count = 1;
  std::string device{};  ///< name or alias of its devices
  int64_t devices = 1;
  int64_t memory_bytes = 0;               ///< 0: unknown
  double copy_bytes_per_second = 0;       ///< of its memory; 0: unknown
  double disk_read_bytes_per_second = 0;  ///< of all its disks; 0: none
  double disk_write_bytes_per_second = 0;
  double storage_bytes_per_second = 0;  ///< to and from where checkpoints are, of one host; 0: unknown

  bool operator==(const HostKind&) const = default;
};

/// Where a job runs. Ranks are devices: those of a host are neighbours, in the order of `hosts`.
struct Hardware {
  std::string name{};
  std::string source{};  ///< "preset", "measured 2026-11-26 on NAME", a file
  std::vector<HardwareDevice> devices{};
  std::vector<HostKind> hosts{};
  std::vector<LinkLevel> levels{};  ///< from the inside to the outside
  double restart_seconds = 0;       ///< from a failure until a checkpoint is read; 0: unknown

  int64_t num_devices() const noexcept;
  /// The device of a rank. Throws UsageError for a rank that it does not have.
  const HardwareDevice& device_of(int64_t rank) const;
  const HostKind& host_of(int64_t rank) const;
  /// The kinds of hosts that the first `num_ranks` devices are on, with the first device of each and how many they are.
  struct UsedHosts {
    const HostKind* kind;
    const HardwareDevice* device;
    int64_t num_devices;
    int64_t in_one_host() const noexcept { return std::min(num_devices, kind->devices); }
  };
  std::vector<UsedHosts> used_hosts(int64_t num_ranks) const;
  /// Whether all devices are of one kind.
  bool is_uniform() const noexcept;
  /// The innermost level whose domains contain all `ranks` (ascending); the first for one rank.
  const LinkLevel& level_of(const std::vector<int>& ranks) const;
  bool operator==(const Hardware&) const = default;
};

/// Reads a file. Throws DataError naming the file, the key and what to do: for an unknown key, unit or device (with the
/// nearest), a number that is missing, zero or negative, levels that do not nest or do not contain all devices, hosts
/// with devices that the file does not describe.
Hardware read_hardware(const std::filesystem::path& file);
/// The same from the text of such a file; `source` names it in errors.
Hardware parse_hardware(std::string_view text, const std::string& source);
/// The file that read_hardware reads to the same Hardware, with units ("80GiB", "300GB/s", "5us", "312TFLOP/s").
std::string to_toml(const Hardware& hardware);

/// What a command line says instead of a file.
struct HardwareChoice {
  std::string device{};  ///< alias or name of a preset: "a100-80"
  int64_t per_host = 1;
  int64_t hosts = 1;
  /// Of one device to other hosts, "200Gb" (bits) or "25GB" (bytes) a second; "": that of the usual host.
  std::string link{};
  double price_per_hour = 0;  ///< of one device; 0: unknown
};

/// Names of the presets, by alias.
std::vector<std::string> hardware_presets();
/// Throws UsageError for an unknown device (with the nearest), numbers below 1, more devices in a host than its links
/// connect, or a link that is needed and unknown.
Hardware preset_hardware(const HardwareChoice& choice);
/// Devices that the own links of a preset connect in a host; a large number if it has none, or pairs.
int64_t most_in_host(std::string_view device);
/// Whether preset_hardware knows the network between hosts of such devices.
bool has_usual_network(std::string_view device);
/// The device of a preset, for files that say `device = "a100-80"` without a table of their own; nothing if unknown.
std::optional<HardwareDevice> preset_device(std::string_view name);

}  // namespace caravan
