#include "caravan/comm/messages/exchange.h"

#include <algorithm>
#include <utility>

namespace caravan::messages {

void Exchange::send(int peer, const std::byte* data, int64_t bytes, int tag) {
  if (bytes == 0) return;
  try {
    const int world_rank = world_ranks_[static_cast<size_t>(peer)];
    posted_.push_back({peer, transport_.send(data, static_cast<size_t>(bytes), world_rank, tag)});
  } catch (const std::exception& exception) {
    throw PeerLost{peer, exception.what()};
  }
}

void Exchange::recv(int peer, std::byte* data, int64_t bytes, int tag) {
  if (bytes == 0) return;
  try {
    const int world_rank = world_ranks_[static_cast<size_t>(peer)];
    posted_.push_back({peer, transport_.recv(data, static_cast<size_t>(bytes), world_rank, tag)});
  } catch (const std::exception& exception) {
    throw PeerLost{peer, exception.what()};
  }
}

void Exchange::finish() {
  std::vector<int> missing;
  for (const Posted& posted : posted_) {
    try {
      if (lane_.await(*posted.transfer)) continue;
    } catch (const std::exception& exception) {
      throw PeerLost{posted.peer, exception.what()};
    }
    if (std::ranges::find(missing, posted.peer) == missing.end()) missing.push_back(posted.peer);
  }
  posted_.clear();
  if (!missing.empty()) {
    std::ranges::sort(missing);
    throw PeersMissing{std::move(missing)};
  }
}

}  // namespace caravan::messages
