#include "caravan/comm/measure/host.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <ifaddrs.h>
#include <map>
#include <net/if.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fmt/format.h>

#include "caravan/base/system/blocked_signal.h"
#include "caravan/base/system/memory_limit.h"
#include "caravan/base/text.h"
#include "caravan/comm/measure/cores.h"

namespace caravan::measure {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

/// The number that `text` starts with; -1 if it does not.
int64_t number_of(const std::string& text) {
  int64_t value = -1;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() ? value : -1;
}

/// "name   :  value" lines, as in /proc/cpuinfo and /proc/meminfo; the first of each name.
std::map<std::string, std::string> fields_of(const fs::path& path) {
  std::map<std::string, std::string> fields;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::string field = line.substr(0, colon);
    field.erase(field.find_last_not_of(" \t") + 1);
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    fields.emplace(field, begin == std::string::npos ? "" : line.substr(begin));
  }
  return fields;
}

int64_t kib_of(const std::map<std::string, std::string>& fields, const std::string& field) {
  const auto found = fields.find(field);
  const int64_t kib = found == fields.end() ? -1 : number_of(found->second);
  return kib < 0 ? -1 : kib * 1024;
}

int64_t limit_of(__rlimit_resource resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<int64_t>(limit.rlim_cur);
}

/// The number of entries of `folder` named `prefix` and a number.
int count_numbered(const fs::path& folder, const std::string& prefix) {
  int count = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(prefix) && number_of(name.substr(prefix.size())) >= 0) ++count;
  }
  return count;
}

std::string error_of_memfd() {
  const BlockedSignal no_file_size_signal(SIGXFSZ);
  const int descriptor = memfd_create("caravan_doctor", MFD_CLOEXEC);
  if (descriptor < 0) return strerrordesc_np(errno);
  const bool grows = ftruncate(descriptor, 4096) == 0;
  const int error = errno;
  close(descriptor);
  return grows ? "" : strerrordesc_np(error);
}

std::string error_of_pidfd() {
  const auto descriptor = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  if (descriptor < 0) return strerrordesc_np(errno);
  close(descriptor);
  return "";
}

std::string text_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof(text));
  } else if (address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof(text));
  }
  return text;
}

std::vector<NetworkInterface> read_interfaces() {
  std::map<std::string, NetworkInterface> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    NetworkInterface& entry = found[one->ifa_name];
    entry.name = one->ifa_name;
    entry.is_up = (one->ifa_flags & IFF_UP) != 0 && (one->ifa_flags & IFF_RUNNING) != 0;
    if (one->ifa_addr == nullptr) continue;
    const std::string address = text_of(one->ifa_addr);
    if (entry.address.empty() ||
        (one->ifa_addr->sa_family == AF_INET && entry.address.find(':') != std::string::npos)) {
      if (!address.empty()) entry.address = address;
    }
  }
  freeifaddrs(list);
  std::vector<NetworkInterface> interfaces;
  for (auto& [name, entry] : found) {
    entry.speed_mbit_s = number_of(first_line(fs::path("/sys/class/net") / name / "speed"));
    interfaces.push_back(entry);
  }
  return interfaces;
}

}  // namespace

HostFacts read_host_facts() {
  HostFacts facts;
  utsname system{};
  if (uname(&system) == 0) {
    facts.name = system.nodename;
    facts.kernel = system.release;
  }
  facts.boot_id = first_line("/proc/sys/kernel/random/boot_id");
  const auto cpu = fields_of("/proc/cpuinfo");
  if (const auto model = cpu.find("model name"); model != cpu.end()) facts.cpu = model->second;
  facts.cores = usable_cores();
  facts.num_cores_of_host = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  facts.num_numa_nodes = std::max(1, count_numbered("/sys/devices/system/node", "node"));
  const auto memory = fields_of("/proc/meminfo");
  facts.memory_bytes = kib_of(memory, "MemTotal");
  facts.available_bytes = kib_of(memory, "MemAvailable");
  facts.memory_limit_bytes = control_group_memory_limit();
  facts.open_files_limit = limit_of(RLIMIT_NOFILE);
  facts.address_limit_bytes = address_space_limit();
  facts.locked_limit_bytes = limit_of(RLIMIT_MEMLOCK);
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) == 0) facts.dev_shm_bytes = static_cast<int64_t>(shm.f_bavail * shm.f_frsize);
  facts.memfd_error = error_of_memfd();
  facts.pidfd_error = error_of_pidfd();
  facts.interfaces = read_interfaces();
  return facts;
}

std::vector<std::string> limit_warnings(const HostFacts& facts, int num_local_ranks) {
  constexpr int64_t kFilesARank = 8;  // per peer: a socket of gloo in each direction, a process descriptor, the store
  constexpr int64_t kFilesOfTheProgram = 64;
  constexpr int64_t kFewAddresses = int64_t{16} << 30;
  constexpr int64_t kSmallShm = int64_t{1} << 30;
  std::vector<std::string> bites;
  const int64_t files = kFilesOfTheProgram + kFilesARank * num_local_ranks;
  if (facts.open_files_limit >= 0 && facts.open_files_limit < files) {
    bites.push_back(fmt::format("ulimit -n {}: {} ranks may need {} open files each; raise it", facts.open_files_limit,
                                num_local_ranks, files));
  }
  if (facts.address_limit_bytes >= 0 && facts.address_limit_bytes < kFewAddresses) {
    bites.push_back(
        fmt::format("ulimit -v {}: shared memory is mapped sparsely and needs addresses; ranks share less of "
                    "it in place; lift it",
                    format_bytes(facts.address_limit_bytes)));
  }
  if (facts.memory_limit_bytes >= 0 && facts.memory_bytes >= 0 && facts.memory_limit_bytes < facts.memory_bytes) {
    bites.push_back(fmt::format("the control group allows {} of {} of memory; shared memory counts",
                                format_bytes(facts.memory_limit_bytes), format_bytes(facts.memory_bytes)));
  }
  if (num_local_ranks > static_cast<int>(facts.cores.size())) {
    bites.push_back(fmt::format("{} ranks share {} cores: every wait costs a context switch; use {} ranks",
                                num_local_ranks, facts.cores.size(), facts.cores.size()));
  }
  if (static_cast<int>(facts.cores.size()) < facts.num_cores_of_host) {
    bites.push_back(fmt::format("{} of {} cores may be used (taskset or a container)", facts.cores.size(),
                                facts.num_cores_of_host));
  }
  if (!facts.memfd_error.empty()) {
    bites.push_back(fmt::format("memfd_create: {}: the back-end shm does not work; allow the call in the sandbox",
                                facts.memfd_error));
  }
  if (!facts.pidfd_error.empty()) {
    bites.push_back(fmt::format(
        "pidfd_open: {}: lost ranks cannot be detected; use Linux 5.3 or later and allow the call in the sandbox",
        facts.pidfd_error));
  }
  if (facts.dev_shm_bytes >= 0 && facts.dev_shm_bytes < kSmallShm) {
    bites.push_back(
        fmt::format("/dev/shm has {} free: MPI and NCCL need more (the back-end shm does not use it); mount it larger",
                    format_bytes(facts.dev_shm_bytes)));
  }
  return bites;
}

}  // namespace caravan::measure
