#include "caravan/cost/measured_job.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/base/text.h"
#include "caravan/base/time.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/comm/measure/host.h"
#include "caravan/comm/measure/sampling.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

constexpr double kFresh_s = 24 * 3600;
/// Of what is measured and how: another one does not find files of this one.
constexpr int kMeasurementFormat = 2;

/// 0: unknown.
double load_of_core() {
  double minute = 0;
  if (::getloadavg(&minute, 1) != 1) return 0;
  return minute / std::max(1, measure::read_host_facts().num_cores_of_host);
}

/// The ranks of each host; equal numbers of neighbours.
int ranks_per_host(const std::vector<std::string>& hosts) {
  const auto count = std::ranges::count(hosts, hosts.front());
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const size_t first = rank / static_cast<size_t>(count) * static_cast<size_t>(count);
    if (hosts[rank] == hosts[first] && std::ranges::count(hosts, hosts[rank]) == count) continue;
    throw UsageError({"measure", fmt::format("rank {}", rank),
                      "hosts have different numbers of ranks, or ranks that are not neighbours", "",
                      "start the same number of ranks on every host, host by host"});
  }
  return static_cast<int>(count);
}

/// What one rank adds to the key of the cache.
std::string facts_of(const JobPlace& place, const MeasureLimits& limits) {
  const measure::HostFacts facts = measure::read_host_facts();
  return fmt::format("{}; {}; {} of {} cores; {} and {} bytes; {} threads; {}; {}", facts.name, facts.cpu,
                     facts.cores.size(), facts.num_cores_of_host, facts.memory_bytes, facts.memory_limit_bytes,
                     place.threads, place.choices, join(limits.dtypes));
}

/// The measurement in a file, and its age; nothing if there is none that is fresh, or if it is damaged.
std::optional<JobHardware> find_measured(const fs::path& file, int64_t num_devices) {
  std::error_code error;
  const auto written = fs::last_write_time(file, error);
  if (error) return std::nullopt;
  const std::chrono::duration<double> age = fs::file_time_type::clock::now() - written;
  if (age.count() < 0 || age.count() > kFresh_s) return std::nullopt;
  try {
    JobHardware found{.hardware = read_hardware(file), .age_seconds = age.count()};
    if (found.hardware.num_devices() == num_devices) return found;
  } catch (const Error&) {
    // Measured again.
  }
  return std::nullopt;
}

/// The links between hosts: the ranks with the same place on each host send in a circle, all circles at once.
LinkLevel measure_network(Communicator& world, int per_host) {
  std::vector<int> members;
  for (int rank = world.rank() % per_host; rank < world.size(); rank += per_host) members.push_back(rank);
  const auto across = world.split(members, "across hosts");
  LinkLevel level = measure_link(*across);
  std::array<double, 3> slowest{-level.bytes_per_second, level.latency_seconds, -level.fraction};
  measure::take_slowest(world, slowest);
  return {.name = "network",
          .devices = world.size(),
          .bytes_per_second = -slowest[0],
          .latency_seconds = slowest[1],
          .fraction = -slowest[2]};
}

bool are_alike(const Hardware& a, const Hardware& b) {
  return a.devices.front().name == b.devices.front().name && a.devices.front().units == b.devices.front().units;
}

double flops_of(const Hardware& host) { return host.devices.front().products.front().flops; }

/// Neighbouring hosts with the same processor are one kind, as slow as the slowest.
Hardware joined(const std::vector<Hardware>& hosts, const LinkLevel& network) {
  Hardware all = hosts.front();
  all.devices.clear();
  all.hosts.clear();
  LinkLevel inside = hosts.front().levels.front();
  for (size_t first = 0; first < hosts.size();) {
    size_t end = first;
    const Hardware* slowest = &hosts[first];
    int64_t memory = hosts[first].devices.front().memory_bytes;
    for (; end < hosts.size() && are_alike(hosts[end], hosts[first]); ++end) {
      if (flops_of(hosts[end]) < flops_of(*slowest)) slowest = &hosts[end];
      memory = std::min(memory, hosts[end].devices.front().memory_bytes);
    }
    HardwareDevice device = slowest->devices.front();
    device.memory_bytes = memory;
    device.reserved_bytes = std::min(device.reserved_bytes, memory / 2);
    device.alias = fmt::format("cpu{}", all.devices.size());
    if (first > 0) device.name += fmt::format(" of host {}", first);
    HostKind kind = slowest->hosts.front();
    kind.count = static_cast<int64_t>(end - first);
    kind.device = device.alias;
    all.devices.push_back(std::move(device));
    all.hosts.push_back(std::move(kind));
    first = end;
  }
  for (const Hardware& host : hosts) {
    const LinkLevel& own = host.levels.front();
    inside.bytes_per_second = std::min(inside.bytes_per_second, own.bytes_per_second);
    inside.latency_seconds = std::max(inside.latency_seconds, own.latency_seconds);
    inside.fraction = std::min(inside.fraction, own.fraction);
  }
  all.name = fmt::format("{} hosts", hosts.size());
  all.levels = {inside, network};
  return all;
}

/// On rank 0; on others only what this host has.
Hardware measure_hosts(Communicator& world, int per_host, int threads, const MeasureLimits& limits) {
  const std::string date = utc_text(now_seconds()).substr(0, 10);
  if (per_host == world.size()) return measure_hardware(world, threads, date, limits).hardware;
  std::vector<int> members;
  for (int i = 0; i < per_host; ++i) members.push_back(world.rank() / per_host * per_host + i);
  const auto host = world.split(members, "host");
  const Hardware own = measure_hardware(*host, threads, date, limits).hardware;
  const LinkLevel network = measure_network(world, per_host);
  const auto texts = gather_texts_to(world, host->rank() == 0 ? to_toml(own) : "", 0, "measured hosts");
  std::vector<Hardware> hosts;
  for (const std::string& text : texts) {
    if (!text.empty()) hosts.push_back(parse_hardware(text, "a measured host"));
  }
  return hosts.empty() ? own : joined(hosts, network);
}

void keep(const fs::path& file, const std::string& hardware) {
  try {
    create_folders("measure", file.parent_path());
    write_file_durably(file, "# What the ranks of a job measured (train --auto).\n" + hardware, "measure");
  } catch (const Error&) {
    // A cache that cannot be written to costs time, and nothing else.
  }
}

}  // namespace

JobHardware job_hardware(Communicator& world, const JobPlace& place, const fs::path& cache,
                         const MeasureLimits& limits) {
  const int per_host = ranks_per_host(gather_texts(world, place.host, "hosts"));
  std::string key = fmt::format("{}; {}; {} a host\n", kMeasurementFormat, world.backend(), per_host);
  for (const std::string& facts : gather_texts(world, facts_of(place, limits), "hosts")) key += facts + '\n';
  const fs::path file = cache / fmt::format("hardware-{}.toml", content_hash(key).hex());
  std::optional<JobHardware> found;
  if (world.rank() == 0) found = find_measured(file, world.size());
  if (broadcast_text(world, found ? "found" : "", 0, "measured hardware") == "found")
    return found.value_or(JobHardware());
  std::array<double, 1> load{load_of_core()};
  measure::take_slowest(world, load);
  const auto begin = std::chrono::steady_clock::now();
  JobHardware measured{.hardware = measure_hosts(world, per_host, place.threads, limits)};
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  measured.measured_seconds = taken.count();
  measured.load_of_core = load[0];
  if (world.rank() == 0) {
    const std::string text = to_toml(measured.hardware);
    keep(file, text);
    measured.hardware = parse_hardware(text, file.string());  // so that the next run, which reads it, chooses the same
  }
  return measured;
}

}  // namespace caravan
