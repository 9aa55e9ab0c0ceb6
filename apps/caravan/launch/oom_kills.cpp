#include "apps/caravan/launch/oom_kills.h"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "caravan/base/system/memory_limit.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

std::optional<int64_t> integer(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

/// The number after `key` in a file of lines "key number ..".
std::optional<int64_t> field(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, value;
    if (words >> name >> value && name == key) return integer(value);
  }
  return std::nullopt;
}

struct Group {
  fs::path folder;
  bool is_version_1;
};

/// The memory control groups of this process, where they are mounted as usual. In a container the group's own folder
/// may be hidden, and the root of the mount is the container's group.
std::vector<Group> memory_groups(const std::string& root) {
  std::vector<Group> groups;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const bool is_version_1 = line.find(":memory:") != std::string::npos;
    if (!is_version_1 && !line.starts_with("0::")) continue;
    const fs::path mount = root + (is_version_1 ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup");
    const fs::path own = mount.string() + line.substr(line.rfind(':') + 1);
    std::error_code error;
    groups.push_back({fs::exists(own, error) ? own : mount, is_version_1});
  }
  return groups;
}

}  // namespace

OomKills::OomKills(std::string root) : root_(std::move(root)), before_(count()) {}

bool OomKills::happened() const {
  const auto now = count();
  return now && *now > before_.value_or(0);
}

std::optional<int64_t> OomKills::count() const {
  for (const Group& group : memory_groups(root_)) {
    const char* file = group.is_version_1 ? "memory.oom_control" : "memory.events";
    if (const auto number = field(group.folder / file, "oom_kill")) return number;
  }
  return field(root_ + "/proc/vmstat", "oom_kill");
}

int64_t OomKills::memory_limit() const {
  const int64_t bytes = usable_memory_bytes(root_.empty() ? "/" : root_);
  return bytes > 0 ? bytes : -1;
}

int64_t OomKills::private_memory(pid_t pid) const {
  return field(root_ + "/proc/" + std::to_string(pid) + "/status", "RssAnon:").value_or(0) * 1024;
}

}  // namespace caravan
