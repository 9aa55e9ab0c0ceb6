#pragma once

#include <vector>

namespace caravan::measure {

/// The cores the calling thread may run on, ascending: fewer than the host's in a container or under taskset.
std::vector<int> usable_cores();

/// Keeps the calling thread, not the process, on one core while it lives. Threads that it starts meanwhile stay there:
/// make communicators before.
class PinnedThread {
 public:
  /// Core number `local_rank` of `cores`, from the first again when there are more ranks than cores. Where the kernel
  /// refuses, the thread stays free.
  PinnedThread(std::vector<int> cores, int local_rank) noexcept;
  ~PinnedThread();
  PinnedThread(const PinnedThread&) = delete;
  PinnedThread& operator=(const PinnedThread&) = delete;

 private:
  std::vector<int> cores_;
};

}  // namespace caravan::measure
