#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace caravan {

/// Tells whether the kernel has killed a process for lack of memory since this object was made.
class OomKills {
 public:
  /// `root`: prefix of /proc and /sys, for tests.
  explicit OomKills(std::string root = "");

  /// True if the counter of this process's control group, or without one that of the host, has increased.
  bool happened() const;
  /// The memory that the processes of this control group may use: its limit, or the host's memory. -1: unknown.
  int64_t memory_limit() const;

 private:
  std::optional<int64_t> count() const;

  std::string root_;
  std::optional<int64_t> before_;
};

}  // namespace caravan
