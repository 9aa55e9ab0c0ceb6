#pragma once

#include <vector>

#include "caravan/comm/shared/peer_watch.h"
#include "caravan/comm/store_socket.h"

namespace caravan::shared {

/// A process of the world by a descriptor, which stays with this very process even if its number is used again.
struct PeerProcess {
  int world_rank = 0;
  int number = 0;  ///< for messages
  store_socket::Fd descriptor;
};

/// The calling process. Throws ResourceError if the kernel gives no such descriptor.
PeerProcess own_process(int world_rank);

/// Asks the kernel about all of them in one call.
class ProcessWatch final : public PeerWatch {
 public:
  explicit ProcessWatch(std::vector<PeerProcess> peers) : peers_(std::move(peers)) {}
  std::vector<EndedPeer> ended() override;
  std::vector<StoppedPeer> stopped() override;

 private:
  std::vector<PeerProcess> peers_;
};

}  // namespace caravan::shared
