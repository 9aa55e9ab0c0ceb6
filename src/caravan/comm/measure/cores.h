#pragma once

#include <vector>

#include "caravan/base/system/cores.h"

namespace caravan::measure {

using caravan::usable_cores;

/// Pins the calling thread to one core while it lives. Threads that it starts meanwhile inherit this: create
/// communicators first.
class PinnedThread {
 public:
  /// Pins to core number `local_rank` of `cores`, modulo their number. Does nothing if the kernel refuses.
  PinnedThread(std::vector<int> cores, int local_rank) noexcept;
  ~PinnedThread();
  PinnedThread(const PinnedThread&) = delete;
  PinnedThread& operator=(const PinnedThread&) = delete;

 private:
  std::vector<int> cores_;
};

}  // namespace caravan::measure
