#pragma once

#include <vector>

#include "caravan/base/system/fd.h"
#include "caravan/comm/backends/shared/peers/peer_watch.h"

namespace caravan::shared {

/// A process of the world. Its pidfd keeps referring to it even if its process id is reused.
struct PeerProcess {
  int world_rank = 0;
  int number = 0;  ///< its process id, for error messages
  Fd descriptor;
};

/// The calling process. Throws ResourceError if the kernel provides no pidfd.
PeerProcess own_process(int world_rank);

/// Checks all of them by one poll(2).
class ProcessWatch final : public PeerWatch {
 public:
  explicit ProcessWatch(std::vector<PeerProcess> peers) : peers_(std::move(peers)) {}
  std::vector<EndedPeer> ended() override;
  std::vector<StoppedPeer> stopped() override;

 private:
  std::vector<PeerProcess> peers_;
};

}  // namespace caravan::shared
