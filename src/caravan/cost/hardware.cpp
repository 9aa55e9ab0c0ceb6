#include "caravan/cost/hardware.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {

const ProductRate* HardwareDevice::product(std::string_view dtype) const noexcept {
  const auto found = std::ranges::find(products, dtype, &ProductRate::dtype);
  return found == products.end() ? nullptr : &*found;
}

int64_t Hardware::num_devices() const noexcept {
  int64_t sum = 0;
  for (const HostKind& host : hosts) sum += host.count * host.devices;
  return sum;
}

const HostKind& Hardware::host_of(int64_t rank) const {
  int64_t end = 0;
  for (const HostKind& host : hosts) {
    end += host.count * host.devices;
    if (rank >= 0 && rank < end) return host;
  }
  throw UsageError({.op = "hardware",
                    .subject = fmt::format("rank {}", rank),
                    .fact = fmt::format("'{}' has {} devices", name, end),
                    .action = "use fewer ranks, or describe more hosts"});
}

const HardwareDevice& Hardware::device_of(int64_t rank) const {
  const HostKind& host = host_of(rank);
  for (const HardwareDevice& device : devices) {
    if (device.name == host.device || device.alias == host.device) return device;
  }
  throw UsageError({.op = "hardware",
                    .subject = fmt::format("device '{}'", host.device),
                    .fact = fmt::format("a host of '{}' has it, and nothing describes it", name),
                    .action = "add it to the devices"});
}

std::vector<Hardware::UsedHosts> Hardware::used_hosts(int64_t num_ranks) const {
  std::vector<UsedHosts> used;
  int64_t first = 0;
  for (const HostKind& host : hosts) {
    const int64_t devices = std::min(num_ranks - first, host.count * host.devices);
    if (devices <= 0) break;
    used.push_back({&host, &device_of(first), devices});
    first += devices;
  }
  return used;
}

bool Hardware::is_uniform() const noexcept {
  return std::ranges::all_of(hosts, [&](const HostKind& host) {
    const auto is_kind = [&](const HardwareDevice& device) {
      const auto has_name = [&](const std::string& text) { return device.name == text || device.alias == text; };
      return has_name(host.device) && has_name(hosts.front().device);
    };
    return host.device == hosts.front().device || std::ranges::any_of(devices, is_kind);
  });
}

const LinkLevel& Hardware::level_of(const std::vector<int>& ranks) const {
  if (ranks.empty() || levels.empty()) {
    throw UsageError({.op = "hardware",
                      .subject = fmt::format("'{}'", name),
                      .fact = levels.empty() ? "has no levels" : "there is no link of no ranks",
                      .action = levels.empty() ? "describe its links" : "name at least one rank"});
  }
  host_of(ranks.front());
  host_of(ranks.back());
  for (const LinkLevel& level : levels) {
    if (ranks.front() / level.devices == ranks.back() / level.devices) return level;
  }
  return levels.back();
}

}  // namespace caravan
