#include "caravan/base/system/memory_limit.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>
#include <sys/resource.h>
#include <unistd.h>

namespace caravan {
namespace {

namespace fs = std::filesystem;

/// The number in the first line of a file; -1 if there is none ("max", no such file).
int64_t number_in(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  int64_t number = -1;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), number);
  return error == std::errc() ? number : -1;
}

/// MemTotal of /proc/meminfo, which is in KiB; 0 if it cannot be read.
int64_t installed_memory(const fs::path& root) {
  std::ifstream file(root / "proc/meminfo");
  for (std::string word; file >> word;) {
    int64_t kib = 0;
    if (word == "MemTotal:" && file >> kib) return kib * 1024;
  }
  return 0;
}

}  // namespace

int64_t control_group_memory_limit(const fs::path& root) {
  constexpr int64_t kNoLimit = int64_t{1} << 60;  // version 1 shows a number near 2^63 if there is no limit
  int64_t smallest = -1;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // ID:CONTROLLERS:PATH
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool version_1 = controllers.find(",memory,") != std::string::npos;
    if (!version_1 && controllers != ",,") continue;
    const fs::path mount = root / (version_1 ? "sys/fs/cgroup/memory" : "sys/fs/cgroup");
    const char* file = version_1 ? "memory.limit_in_bytes" : "memory.max";
    // The limits of all ancestors apply. In a container the path may be the host's, and only the root exists.
    for (fs::path group = line.substr(second + 1);; group = group.parent_path()) {
      const int64_t limit = number_in(mount / group.relative_path() / file);
      if (limit >= 0 && limit < kNoLimit && (smallest < 0 || limit < smallest)) smallest = limit;
      if (group == group.parent_path()) break;
    }
  }
  return smallest;
}

int64_t usable_memory_bytes(const fs::path& root) {
  int64_t memory = installed_memory(root);
  // Without /proc the C library still knows.
  if (memory == 0 && root == "/") memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  const int64_t limit = control_group_memory_limit(root);
  if (limit < 0) return memory;
  return memory == 0 ? limit : std::min(memory, limit);
}

int64_t address_space_limit() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<int64_t>(limit.rlim_cur);
}

}  // namespace caravan
