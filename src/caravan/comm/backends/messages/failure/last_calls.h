#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "caravan/comm/calls/descriptor.h"

namespace caravan::messages {

/// The last call of each rank of the world that this rank has seen, for the error when that rank is late.
class LastCalls {
 public:
  explicit LastCalls(int world_size) : entries_(static_cast<size_t>(world_size)) {}
  void note(int world_rank, const Descriptor& call, const std::string& communicator);
  /// "rank 2 last called barrier at train/loop.cpp:80, operation 7 of "dp", as far as this rank knows".
  std::string text(int world_rank) const;

 private:
  struct Entry {
    Descriptor call;
    std::string communicator;  ///< "" if none was seen
  };
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace caravan::messages
