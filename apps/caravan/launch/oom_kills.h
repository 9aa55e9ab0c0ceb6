#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <sys/types.h>

namespace caravan {

/// Tells whether the kernel has killed a process for lack of memory since this object was made.
class OomKills {
 public:
  /// `root`: prefix of /proc and /sys, for tests.
  explicit OomKills(std::string root = "");

  /// Whether the kernel has a counter of such kills: since Linux 4.13, if /proc and /sys are mounted as usual.
  bool are_counted() const { return count().has_value(); }
  /// True if the counter of this process's control group, or without one that of the host, has increased.
  bool happened() const;
  /// See usable_memory_bytes. -1: unknown.
  int64_t memory_limit() const;
  /// The memory that process `pid` uses and shares with no other, now. 0 if it has ended.
  int64_t private_memory(pid_t pid) const;

 private:
  std::optional<int64_t> count() const;

  std::string root_;
  std::optional<int64_t> before_;
};

}  // namespace caravan
