#include "caravan/comm/backends/messages/failure/last_calls.h"

#include <fmt/format.h>

namespace caravan::messages {

void LastCalls::note(int world_rank, const Descriptor& call, const std::string& communicator) {
  const std::lock_guard lock(mutex_);
  entries_[static_cast<size_t>(world_rank)] = {call, communicator};
}

std::string LastCalls::text(int world_rank) const {
  const std::lock_guard lock(mutex_);
  const Entry& entry = entries_[static_cast<size_t>(world_rank)];
  if (entry.communicator.empty()) return fmt::format("rank {} has called nothing yet that this rank knows", world_rank);
  return fmt::format("rank {} last called {}, operation {} of \"{}\", as far as this rank knows", world_rank,
                     to_string(entry.call), entry.call.sequence, entry.communicator);
}

}  // namespace caravan::messages
