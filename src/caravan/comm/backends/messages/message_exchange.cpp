#include "caravan/comm/backends/messages/message_exchange.h"

#include <algorithm>
#include <utility>

namespace caravan::messages {

template <class Post>
void MessageExchange::post(int peer, int64_t bytes, const Post& post) {
  if (bytes == 0) return;
  try {
    posted_.push_back({peer, post(static_cast<size_t>(bytes), world_ranks_[static_cast<size_t>(peer)])});
  } catch (const std::exception& exception) {
    throw PeerLost{peer, exception.what()};
  }
}

void MessageExchange::send(int peer, const std::byte* data, int64_t bytes, int tag) {
  post(peer, bytes, [&](size_t size, int world_rank) { return transport_.send(data, size, world_rank, tag); });
}

void MessageExchange::recv(int peer, std::byte* data, int64_t bytes, int tag) {
  post(peer, bytes, [&](size_t size, int world_rank) { return transport_.recv(data, size, world_rank, tag); });
}

void MessageExchange::finish() {
  std::vector<int> missing;
  for (const Posted& posted : posted_) {
    try {
      if (thread_.await(*posted.transfer)) continue;
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
