#include "apps/caravan/bench/doctor_report.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/text.h"

namespace caravan::app {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMostLinesOfLinks = 20;
constexpr double kLongBytes = 4 << 20;

/// Microseconds for 8 bytes and then 4 MiB over each link.
double cost_us(const BackendFinding& finding) {
  double sum = 0;
  for (const measure::Link& link : finding.links) sum += link.latency_us + kLongBytes / link.bandwidth_gb_s / 1e3;
  return sum;
}

const BackendFinding* best_of(const std::vector<BackendFinding>& findings) {
  const BackendFinding* best = nullptr;
  for (const BackendFinding& finding : findings) {
    if (!finding.works() || finding.links.empty()) continue;
    if (best == nullptr || cost_us(finding) < cost_us(*best)) best = &finding;
  }
  return best;
}

std::string limit_text(int64_t bytes) { return bytes < 0 ? "none" : format_bytes(bytes); }

std::string numbers(const std::vector<int>& values) {
  return join(std::vector<int64_t>(values.begin(), values.end()), " ");
}

std::string host_text(const HostFinding& host) {
  const measure::HostFacts& facts = host.facts;
  std::string text = fmt::format("host {}: ranks {}\n", facts.name, numbers(host.ranks));
  const auto line = [&](const char* what, const std::string& value) {
    text += fmt::format("  {:<14}{}\n", what, value);
  };
  line("system", fmt::format("Linux {}, {}", facts.kernel, facts.cpu.empty() ? "processor unknown" : facts.cpu));
  line("cores", fmt::format("{} of {}: {}", facts.cores.size(), facts.num_cores_of_host, numbers(facts.cores)));
  line("NUMA nodes", std::to_string(facts.num_numa_nodes));
  line("memory", fmt::format("{}, {} available, control group limit {}", limit_text(facts.memory_bytes),
                             limit_text(facts.available_bytes), limit_text(facts.memory_limit_bytes)));
  if (host.memory) {
    line("memory rate", fmt::format("{:.1f} GB/s copying, {:.1f} GB/s adding, all its ranks together (read + written)",
                                    host.memory->copy_gb_s, host.memory->add_gb_s));
  }
  line("limits", fmt::format("open files {}, address space {}, locked memory {}, /dev/shm {}",
                             facts.open_files_limit < 0 ? "none" : std::to_string(facts.open_files_limit),
                             limit_text(facts.address_limit_bytes), limit_text(facts.locked_limit_bytes),
                             facts.dev_shm_bytes < 0 ? "missing" : limit_text(facts.dev_shm_bytes) + " free"));
  line("kernel calls", fmt::format("memfd_create {}, pidfd_open {}",
                                   facts.memfd_error.empty() ? "works" : "fails: " + facts.memfd_error,
                                   facts.pidfd_error.empty() ? "works" : "fails: " + facts.pidfd_error));
  for (const measure::NetworkInterface& one : facts.interfaces) {
    line("network", fmt::format("{} {} {}, {}", one.name, one.address.empty() ? "no address" : one.address,
                                one.is_up ? "up" : "down",
                                one.speed_mbit_s > 0 ? fmt::format("{} Mbit/s", one.speed_mbit_s) : "speed unknown"));
  }
  for (const std::string& limit : host.limits) line("warning", limit);
  return text;
}

std::string link_text(const measure::Link& link) {
  return fmt::format("  {:>3} -> {:<3}{:>12.2f} us for 8 bytes{:>10.2f} GB/s for 4 MiB{}\n", link.from, link.to,
                     link.latency_us, link.bandwidth_gb_s, link.is_right ? "" : "   WRONG DATA");
}

std::string backend_text(const BackendFinding& finding) {
  std::string text = fmt::format("back-end {}: {}\n", finding.name, finding.works() ? "works" : "DOES NOT WORK");
  for (const std::string& error : finding.errors) text += "  " + error + "\n";
  std::vector<measure::Link> links = finding.links;
  if (links.size() > kMostLinesOfLinks) {
    std::sort(links.begin(), links.end(),
              [](const auto& a, const auto& b) { return a.bandwidth_gb_s < b.bandwidth_gb_s; });
    links.resize(kMostLinesOfLinks);
    text += fmt::format("  the {1} slowest of {0} links by bandwidth:\n", finding.links.size(), kMostLinesOfLinks);
  }
  for (const measure::Link& link : links) text += link_text(link);
  return text;
}

ordered_json json_of(const HostFinding& host) {
  const measure::HostFacts& facts = host.facts;
  ordered_json interfaces = ordered_json::array();
  for (const measure::NetworkInterface& one : facts.interfaces) {
    interfaces.push_back(
        {{"name", one.name}, {"address", one.address}, {"up", one.is_up}, {"speed_mbit_s", one.speed_mbit_s}});
  }
  ordered_json json{{"name", facts.name},
                    {"ranks", host.ranks},
                    {"kernel", facts.kernel},
                    {"cpu", facts.cpu},
                    {"cores", facts.cores},
                    {"cores_of_host", facts.num_cores_of_host},
                    {"numa_nodes", facts.num_numa_nodes},
                    {"memory_bytes", facts.memory_bytes},
                    {"available_bytes", facts.available_bytes},
                    {"memory_limit_bytes", facts.memory_limit_bytes},
                    {"open_files_limit", facts.open_files_limit},
                    {"address_limit_bytes", facts.address_limit_bytes},
                    {"locked_limit_bytes", facts.locked_limit_bytes},
                    {"dev_shm_bytes", facts.dev_shm_bytes},
                    {"memfd_error", facts.memfd_error},
                    {"pidfd_error", facts.pidfd_error},
                    {"interfaces", interfaces},
                    {"limits", host.limits}};
  json["copy_gb_s"] = host.memory ? ordered_json(host.memory->copy_gb_s) : ordered_json(nullptr);
  json["add_gb_s"] = host.memory ? ordered_json(host.memory->add_gb_s) : ordered_json(nullptr);
  return json;
}

ordered_json json_of(const TierFindings& tiers) {
  ordered_json disks = ordered_json::array();
  for (const TierFindings::Disk& disk : tiers.disks) {
    ordered_json one{{"folder", disk.rates.folder.string()}, {"error", disk.error}, {"notes", disk.notes}};
    if (disk.error.empty()) {
      one["read_bytes_per_second"] = disk.rates.read_bytes_per_second;
      one["write_bytes_per_second"] = disk.rates.write_bytes_per_second;
    }
    disks.push_back(std::move(one));
  }
  return {{"copy_bytes_per_second", tiers.copy_bytes_per_second},
          {"disks", disks},
          {"file", tiers.file},
          {"file_error", tiers.file_error}};
}

ordered_json json_of(const BackendFinding& finding) {
  ordered_json links = ordered_json::array();
  for (const measure::Link& link : finding.links) {
    links.push_back({{"from", link.from},
                     {"to", link.to},
                     {"latency_us", link.latency_us},
                     {"bandwidth_gb_s", link.bandwidth_gb_s},
                     {"right", link.is_right}});
  }
  return {{"name", finding.name}, {"works", finding.works()}, {"errors", finding.errors}, {"links", links}};
}

}  // namespace

bool BackendFinding::works() const {
  return errors.empty() && std::all_of(links.begin(), links.end(), [](const auto& link) { return link.is_right; });
}

double BackendFinding::worst_latency_us() const {
  double worst = 0;
  for (const measure::Link& link : links) worst = std::max(worst, link.latency_us);
  return worst;
}

double BackendFinding::worst_bandwidth_gb_s() const {
  double worst = links.empty() ? 0 : links.front().bandwidth_gb_s;
  for (const measure::Link& link : links) worst = std::min(worst, link.bandwidth_gb_s);
  return worst;
}

std::string Diagnosis::backend() const {
  const BackendFinding* best = best_of(backends);
  return best == nullptr ? "" : best->name;
}

std::string Diagnosis::reason() const {
  if (num_ranks < 2) return "one rank: there is nothing to communicate";
  const BackendFinding* best = best_of(backends);
  if (best == nullptr) return "no back-end works between all ranks; see the errors above";
  std::string text = fmt::format("its slowest link has a latency of {:.2f} us and a bandwidth of {:.2f} GB/s",
                                 best->worst_latency_us(), best->worst_bandwidth_gb_s());
  for (const BackendFinding& other : backends) {
    if (&other == best) continue;
    text += !other.works() ? fmt::format("; {} does not work", other.name)
                           : fmt::format("; {}: {:.2f} us and {:.2f} GB/s", other.name, other.worst_latency_us(),
                                         other.worst_bandwidth_gb_s());
  }
  return text + (hosts.size() == 1 ? "" : fmt::format("; {} hosts: shared memory does not connect them", hosts.size()));
}

bool Diagnosis::all_links_work() const {
  return std::all_of(backends.begin(), backends.end(), [](const auto& finding) { return finding.works(); });
}

std::string to_text(const TierFindings& tiers) {
  std::string text =
      fmt::format("tiers: {:.2f} GB/s from memory to memory, one thread\n", tiers.copy_bytes_per_second / 1e9);
  for (const TierFindings::Disk& disk : tiers.disks) {
    text += disk.error.empty()
                ? fmt::format("disk {}: {:.2f} GB/s reading, {:.2f} GB/s writing\n", disk.rates.folder.string(),
                              disk.rates.read_bytes_per_second / 1e9, disk.rates.write_bytes_per_second / 1e9)
                : fmt::format("disk {}: not measured: {}\n", disk.rates.folder.string(), disk.error);
    for (const std::string& note : disk.notes) text += fmt::format("  {}\n", note);
  }
  return text + (tiers.file_error.empty() ? fmt::format("  kept in {} for plans of offload\n", tiers.file)
                                          : fmt::format("  not kept: {}\n", tiers.file_error));
}

std::string to_text(const Diagnosis& diagnosis) {
  std::string text;
  for (const HostFinding& host : diagnosis.hosts) text += host_text(host);
  text += to_text(diagnosis.tiers);
  if (diagnosis.ping_ns) {
    text += fmt::format("cache line from the core of rank 0 to that of rank 1: {:.0f} ns\n", *diagnosis.ping_ns);
  }
  for (const BackendFinding& finding : diagnosis.backends) text += backend_text(finding);
  const std::string backend = diagnosis.backend();
  return text + (backend.empty() ? "" : fmt::format("use comm.backend = \"{}\": ", backend)) + diagnosis.reason() +
         "\n";
}

std::string to_json(const Diagnosis& diagnosis) {
  ordered_json hosts = ordered_json::array();
  for (const HostFinding& host : diagnosis.hosts) hosts.push_back(json_of(host));
  ordered_json backends = ordered_json::array();
  for (const BackendFinding& finding : diagnosis.backends) backends.push_back(json_of(finding));
  ordered_json json{{"ranks", diagnosis.num_ranks},
                    {"hosts", hosts},
                    {"tiers", json_of(diagnosis.tiers)},
                    {"ping_ns", nullptr},
                    {"backends", backends},
                    {"use", diagnosis.backend()},
                    {"why", diagnosis.reason()},
                    {"ok", diagnosis.all_links_work()}};
  if (diagnosis.ping_ns) json["ping_ns"] = *diagnosis.ping_ns;
  return json.dump() + "\n";
}

}  // namespace caravan::app
