#pragma once

#include <string>
#include <vector>

namespace caravan::shared {

struct EndedPeer {
  int world_rank = 0;
  std::string fact;  ///< "its process 1234 has ended"
};

/// Knows which peers' processes have ended, for good or bad.
class PeerWatch {
 public:
  virtual ~PeerWatch() = default;
  /// Cheap enough for every 50 ms.
  virtual std::vector<EndedPeer> ended() = 0;
};

}  // namespace caravan::shared
