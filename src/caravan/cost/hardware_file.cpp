#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <toml++/toml.h>

#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/base/text.h"
#include "caravan/cost/hardware.h"
#include "caravan/cost/hardware_table.h"

namespace caravan {
namespace {

constexpr const char* kOp = "hardware";
const std::vector<std::string> kProductDtypes{"fp32", "tf32", "fp16", "bf16", "fp8"};

const std::vector<std::string> kTopKeys{"name", "source", "restart", "device", "host", "level"};
const std::vector<std::string> kDeviceKeys{"like",           "name",     "units",       "products",    "attention",
                                           "memory",         "reserved", "memory_rate", "launch",      "host_rate",
                                           "price_per_hour", "mtbf",     "time_error",  "is_processor"};
const std::vector<std::string> kProductKeys{"peak",
                                            "reached",
                                            "tile",
                                            "ramp_k",
                                            "sustained",
                                            "unaligned",
                                            "kernel_rate",
                                            "kernel",
                                            "operand_rate",
                                            "attention",
                                            "attention_row",
                                            "attention_backward",
                                            "attention_backward_row"};
const std::vector<std::string> kHostKeys{"count",     "device",    "devices",    "memory",
                                         "copy_rate", "disk_read", "disk_write", "storage_rate"};
const std::vector<std::string> kLevelKeys{"name",           "devices",          "rate", "latency", "fraction",
                                          "reduce_speedup", "oversubscription", "call", "ramp",    "congestion",
                                          "includes_inner"};

using Zero = HardwareTable::Zero;

std::vector<std::string> device_names(const Hardware& hardware) {
  std::vector<std::string> names;
  for (const HardwareDevice& device : hardware.devices) {
    names.push_back(device.alias.empty() ? device.name : device.alias);
  }
  std::ranges::copy(hardware_presets(), std::back_inserter(names));
  return names;
}

const HardwareDevice* find_device(const Hardware& hardware, const std::string& name) {
  for (const HardwareDevice& device : hardware.devices) {
    if (device.name == name || device.alias == name) return &device;
  }
  return nullptr;
}

ProductRate read_product(const HardwareTable& table, const ProductRate& base) {
  ProductRate rate = base;
  rate.peak_flops = table.quantity("peak", Quantity::flops_per_second, base.peak_flops);
  if (table.find("reached") == nullptr && base.flops == 0 && rate.peak_flops == 0) {
    table.refuse("reached", "is missing, and so is peak", "add one of them: reached = \"271TFLOP/s\"");
  }
  const bool is_of_base = base.flops > 0 && rate.peak_flops == base.peak_flops;
  rate.flops =
      table.quantity("reached", Quantity::flops_per_second, is_of_base ? base.flops : kReachedShare * rate.peak_flops);
  if (rate.peak_flops > 0 && rate.flops > rate.peak_flops) {
    table.refuse("reached", "is more than peak", "correct one of them, or leave peak out if it is unknown");
  }
  if (const toml::node* tile = table.find("tile")) {
    const toml::array* sizes = tile->as_array();
    const auto size = [&](size_t i) {
      const toml::node& node = (*sizes)[i];
      return node.is_integer() ? node.value_or<int64_t>(0) : 0;
    };
    if (sizes == nullptr || sizes->size() != 2 || size(0) < 1 || size(1) < 1 || std::max(size(0), size(1)) > 65536) {
      table.refuse("tile", "is not a pair of numbers of 1 or more", "write the rows and columns of a tile: [128, 128]");
    }
    rate.tile_m = size(0);
    rate.tile_n = size(1);
  }
  rate.ramp_k = static_cast<int64_t>(table.number("ramp_k", static_cast<double>(base.ramp_k), 0, 1e6));
  rate.sustained = table.number("sustained", base.sustained, 1e-3, 1);
  rate.unaligned = table.number("unaligned", base.unaligned, 1e-3, 1);
  rate.kernel_bytes_per_second =
      table.quantity("kernel_rate", Quantity::bytes_per_second, base.kernel_bytes_per_second, Zero::allowed);
  rate.kernel_seconds = table.quantity("kernel", Quantity::seconds, base.kernel_seconds, Zero::allowed);
  rate.operand_bytes_per_second =
      table.quantity("operand_rate", Quantity::bytes_per_second, base.operand_bytes_per_second, Zero::allowed);
  const auto read_attention = [&](const std::string& key, AttentionCost& cost) {
    cost.flops = table.quantity(key, Quantity::flops_per_second, cost.flops, Zero::allowed);
    cost.row_seconds = table.quantity(key + "_row", Quantity::seconds, cost.row_seconds, Zero::allowed);
    if (cost.flops == 0 && cost.row_seconds > 0)
      table.refuse(key, "is missing, and there is " + key + "_row", "add it");
  };
  read_attention("attention", rate.attention);
  read_attention("attention_backward", rate.attention_backward);
  if ((rate.attention.flops > 0) != (rate.attention_backward.flops > 0)) {
    table.refuse(rate.attention.flops > 0 ? "attention_backward" : "attention", "is missing", "add both, or neither");
  }
  return rate;
}

void read_products(const HardwareTable& table, HardwareDevice& device) {
  const toml::node* node = table.find("products");
  if (node == nullptr && !device.products.empty()) return;
  if (node == nullptr) {
    table.refuse("products", "is missing",
                 "add e.g. products.bf16 = {peak = \"312TFLOP/s\", reached = \"271TFLOP/s\"}");
  }
  const HardwareTable products(*node, table.name() + ".products", table.file());
  for (const auto& [dtype, one] : in_order(*node->as_table())) {
    if (std::ranges::find(kProductDtypes, dtype) == kProductDtypes.end()) {
      products.refuse_at(*one, products.name(), not_one_of(dtype, kProductDtypes), "correct it");
    }
    const HardwareTable keys(*one, fmt::format("{}.{}", products.name(), dtype), table.file(), kProductKeys);
    const auto base = std::ranges::find(device.products, dtype, &ProductRate::dtype);
    if (base != device.products.end()) {
      *base = read_product(keys, *base);
    } else {
      device.products.push_back(read_product(keys, {.dtype = dtype}));
    }
  }
  if (device.products.empty())
    table.refuse("products", "is empty", "add a rate, such as bf16 = {peak = \"312TFLOP/s\"}");
}

HardwareDevice read_device(const std::string& key, const HardwareTable& table) {
  HardwareDevice device{.reserved_bytes = kReservedBytes,
                        .launch_seconds = kLaunchSeconds,
                        .host_bytes_per_second = kHostRate,
                        .time_error = kTimeError};
  const auto like = table.text("like");
  if (like) {
    const auto preset = preset_device(*like);
    if (!preset) table.refuse("like", not_one_of(*like, hardware_presets()), "name a preset, or leave it out");
    device = *preset;
  }
  const auto name = table.text("name");
  device.name = name.value_or(key);
  device.alias = name ? key : "";
  device.units = table.count("units", device.units);
  read_products(table, device);
  device.attention_fraction = table.number("attention", device.attention_fraction, 1e-3, 1);
  device.memory_bytes = table.bytes("memory", like ? std::optional(device.memory_bytes) : std::nullopt);
  device.reserved_bytes = table.bytes("reserved", device.reserved_bytes, Zero::allowed);
  if (device.reserved_bytes >= device.memory_bytes) {
    table.refuse("reserved", "is not less than memory", "correct one of them; the default of reserved is \"1GiB\"");
  }
  device.memory_bytes_per_second = table.quantity("memory_rate", Quantity::bytes_per_second,
                                                  like ? std::optional(device.memory_bytes_per_second) : std::nullopt);
  device.launch_seconds = table.quantity("launch", Quantity::seconds, device.launch_seconds, Zero::allowed);
  device.host_bytes_per_second = table.quantity("host_rate", Quantity::bytes_per_second, device.host_bytes_per_second);
  device.price_per_hour = table.number("price_per_hour", device.price_per_hour, 0, HUGE_VAL);
  device.mtbf_seconds = table.quantity("mtbf", Quantity::seconds, device.mtbf_seconds, Zero::allowed);
  device.time_error = table.number("time_error", device.time_error, 0, 0.9);
  device.is_processor = table.flag("is_processor", device.is_processor);
  return device;
}

/// Puts the device of a host into `hardware.devices` if it is that of a preset.
std::string device_of_host(const HardwareTable& table, Hardware& hardware, size_t num_described) {
  const auto name = table.text("device");
  if (!name && num_described == 1) {
    const HardwareDevice& device = hardware.devices.front();
    return device.alias.empty() ? device.name : device.alias;
  }
  if (!name) {
    table.refuse("device", fmt::format("is missing, and {} devices are described", num_described),
                 "name one of them, or a preset such as \"a100-80\"");
  }
  if (find_device(hardware, *name) != nullptr) return *name;
  auto preset = preset_device(*name);
  if (!preset) {
    table.refuse("device",
                 fmt::format("'{}' is neither described here nor a preset; the nearest is '{}'", *name,
                             nearest(*name, device_names(hardware))),
                 fmt::format("add [device.{}], or name another", *name));
  }
  hardware.devices.push_back(std::move(*preset));
  return *name;
}

HostKind read_host(const HardwareTable& table, Hardware& hardware, size_t num_described) {
  HostKind host;
  host.count = table.count("count", 1);
  host.device = device_of_host(table, hardware, num_described);
  host.devices = table.count("devices", 1);
  if (host.count > kMostDevices / host.devices) {
    table.refuse("count", fmt::format("gives {} x {} devices", host.count, host.devices), "use fewer");
  }
  host.memory_bytes = table.bytes("memory", 0, Zero::allowed);
  host.copy_bytes_per_second = table.quantity("copy_rate", Quantity::bytes_per_second, 0, Zero::allowed);
  host.disk_read_bytes_per_second = table.quantity("disk_read", Quantity::bytes_per_second, 0, Zero::allowed);
  host.disk_write_bytes_per_second = table.quantity("disk_write", Quantity::bytes_per_second, 0, Zero::allowed);
  if ((host.disk_read_bytes_per_second > 0) != (host.disk_write_bytes_per_second > 0)) {
    table.refuse(host.disk_read_bytes_per_second > 0 ? "disk_read" : "disk_write", "is one of a pair",
                 "give disk_read and disk_write, or neither");
  }
  host.storage_bytes_per_second = table.quantity("storage_rate", Quantity::bytes_per_second, 0, Zero::allowed);
  return host;
}

/// `all`: the devices of the hardware, which the last level has if it says nothing.
LinkLevel read_level(const HardwareTable& table, std::optional<int64_t> all) {
  LinkLevel level;
  const auto name = table.text("name");
  if (!name) table.refuse("name", "is missing", "name the link, such as \"nvlink\" or \"cluster\"");
  level.name = *name;
  level.devices = table.count("devices", all);
  level.bytes_per_second = table.quantity("rate", Quantity::bytes_per_second, std::nullopt);
  level.latency_seconds = table.quantity("latency", Quantity::seconds, kLinkLatency, Zero::allowed);
  level.fraction = table.number("fraction", 1, 1e-3, 1);
  level.reduce_speedup = table.number("reduce_speedup", 1, 1, HUGE_VAL);
  level.oversubscription = table.number("oversubscription", 1, 1, HUGE_VAL);
  level.call_seconds = table.quantity("call", Quantity::seconds, 0, Zero::allowed);
  level.ramp_bytes = table.quantity("ramp", Quantity::bytes, 0, Zero::allowed);
  level.congestion = table.number("congestion", 0, 0, HUGE_VAL);
  level.includes_inner = table.flag("includes_inner", false);
  return level;
}

void read_devices(const HardwareTable& top, Hardware& hardware) {
  const toml::node* node = top.find("device");
  if (node == nullptr) return;
  const HardwareTable devices(*node, "device", top.file());
  for (const auto& [key, one] : in_order(*node->as_table())) {
    const HardwareTable table(*one, "device." + key, top.file(), kDeviceKeys);
    HardwareDevice device = read_device(key, table);
    for (const std::string& name : {device.name, device.alias}) {
      if (!name.empty() && find_device(hardware, name) != nullptr) {
        table.refuse_at(*one, table.name(), fmt::format("another device is called '{}'", name), "rename one of them");
      }
    }
    hardware.devices.push_back(std::move(device));
  }
}

/// Hosts that begin in the middle of a domain end in another one: their devices would have no links between them.
void check_hosts_in(const LinkLevel& level, const Hardware& hardware, const HardwareTable& table) {
  int64_t first = 0;
  for (const HostKind& host : hardware.hosts) {
    const auto is_whole = [&](int64_t begin) {
      return begin % level.devices == 0 || begin / level.devices == (begin + host.devices - 1) / level.devices;
    };
    // Positions within a domain repeat at the latest after as many hosts as it has devices.
    for (int64_t i = 0; i < std::min(host.count, level.devices); ++i) {
      if (is_whole(first + i * host.devices)) continue;
      table.refuse("devices",
                   fmt::format("domains of {} cut a host of {} devices in the middle", level.devices, host.devices),
                   "let domains have whole hosts, or hosts whole domains; list the hosts with most devices first");
    }
    first += host.count * host.devices;
  }
}

void read_levels(const HardwareTable& top, Hardware& hardware) {
  const std::vector<HardwareTable> tables = top.list("level", kLevelKeys);
  const int64_t all = hardware.num_devices();
  if (tables.empty() && all > 1) {
    top.refuse("level", fmt::format("is missing: {} devices have links", all),
               "add [[level]] with name and rate, from the inside to the outside");
  }
  if (tables.empty()) {
    hardware.levels = {
        {.name = "device", .devices = 1, .bytes_per_second = hardware.device_of(0).memory_bytes_per_second}};
  }
  for (size_t i = 0; i < tables.size(); ++i) {
    const bool is_last = i + 1 == tables.size();
    const LinkLevel level = read_level(tables[i], is_last ? std::optional(all) : std::nullopt);
    const int64_t inner = i == 0 ? 1 : hardware.levels.back().devices;
    if (i > 0 && (level.devices <= inner || (!is_last && level.devices % inner != 0))) {
      tables[i].refuse("devices",
                       fmt::format("{} does not nest: the level before has domains of {}", level.devices, inner),
                       fmt::format("list levels from the inside to the outside, each with a multiple of {}", inner));
    }
    if (is_last && level.devices != all) {
      tables[i].refuse("devices", fmt::format("the last level has {} of {} devices", level.devices, all),
                       level.devices < all ? "add an outer [[level]], or leave devices out for all of them"
                                           : "leave devices out for all of them");
    }
    check_hosts_in(level, hardware, tables[i]);
    hardware.levels.push_back(level);
  }
}

toml::table table_of_hardware(std::string_view text, const std::string& file) {
  try {
    return toml::parse(text, file);
  } catch (const toml::parse_error& error) {
    throw DataError({.op = kOp,
                     .subject = file,
                     .fact = std::string(error.description()),
                     .where = fmt::format("{}:{}", file, error.source().begin.line),
                     .action = "correct the TOML of this line; docs/hardware.md has an example"});
  }
}

}  // namespace

Hardware parse_hardware(std::string_view text, const std::string& source) {
  const toml::table parsed = table_of_hardware(text, source);
  const HardwareTable top(parsed, "", source, kTopKeys);
  Hardware hardware;
  hardware.name = top.text("name").value_or(std::filesystem::path(source).stem().string());
  hardware.source = top.text("source").value_or(source);
  hardware.restart_seconds = top.quantity("restart", Quantity::seconds, 0, Zero::allowed);
  read_devices(top, hardware);
  const size_t num_described = hardware.devices.size();
  for (const HardwareTable& table : top.list("host", kHostKeys)) {
    hardware.hosts.push_back(read_host(table, hardware, num_described));
  }
  if (hardware.hosts.empty()) top.refuse("host", "is missing", "add [[host]] with device, devices and count");
  if (hardware.num_devices() > kMostDevices) {
    top.refuse("host", fmt::format("has {} devices in all", hardware.num_devices()), "use fewer");
  }
  read_levels(top, hardware);
  return hardware;
}

Hardware read_hardware(const std::filesystem::path& file) {
  return parse_hardware(MappedFile(file, kOp).text(), file.string());
}

}  // namespace caravan
