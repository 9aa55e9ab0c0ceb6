#include "caravan/plan/host_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

namespace caravan {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

/// The number at the start of `text`; nothing for "max" and the like. Larger than 63 bits: no limit.
std::optional<int64_t> number_in(std::string_view text) {
  int64_t value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault == std::errc::result_out_of_range) return kUnlimited;
  return fault == std::errc() ? std::optional(value) : std::nullopt;
}

/// MemTotal of /proc/meminfo, which is in KiB.
int64_t installed_bytes(const fs::path& root) {
  std::ifstream file(root / "proc/meminfo");
  for (std::string word; file >> word;) {
    int64_t kib = 0;
    if (word == "MemTotal:" && file >> kib) return kib * 1024;
  }
  return 0;
}

/// The smallest limit of `group` and the groups that it is in. A group outside of this namespace counts as the mount's
/// root, which is what a container sees.
int64_t smallest_limit(const fs::path& mount, fs::path group, const char* file_name) {
  int64_t limit = kUnlimited;
  const auto read = [&](const fs::path& folder) {
    std::ifstream file(folder / file_name);
    std::string text;
    if (file >> text) limit = std::min(limit, number_in(text).value_or(kUnlimited));
  };
  for (group = group.relative_path(); !group.empty(); group = group.parent_path()) read(mount / group);
  read(mount);
  return limit;
}

/// Lines of /proc/self/cgroup: "0::/path" for version 2, "5:memory:/path" for version 1.
int64_t group_limit(const fs::path& root) {
  std::ifstream file(root / "proc/self/cgroup");
  int64_t limit = kUnlimited;
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    const fs::path mount = root / "sys/fs/cgroup";
    if (controllers == ",,") limit = std::min(limit, smallest_limit(mount, group, "memory.max"));
    if (controllers.find(",memory,") != std::string::npos) {
      limit = std::min(limit, smallest_limit(mount / "memory", group, "memory.limit_in_bytes"));
    }
  }
  return limit;
}

}  // namespace

int64_t host_memory_bytes(const fs::path& root) {
  const int64_t installed = installed_bytes(root);
  const int64_t limit = group_limit(root);
  if (installed == 0) return limit == kUnlimited ? 0 : limit;
  return std::min(installed, limit);
}

}  // namespace caravan
