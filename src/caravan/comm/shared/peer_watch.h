#pragma once

#include <string>
#include <vector>

namespace caravan::shared {

struct EndedPeer {
  int world_rank = 0;
  std::string fact;  ///< "its process 1234 has ended"
};

/// A peer whose process is stopped, by SIGSTOP, a terminal or a debugger: it lives, and may go on.
struct StoppedPeer {
  int world_rank = 0;
  int number = 0;  ///< of its process, as this one sees it
};

/// Knows which peers' processes have ended, for good or bad, and which stand still.
class PeerWatch {
 public:
  virtual ~PeerWatch() = default;
  /// Cheap enough for every 50 ms.
  virtual std::vector<EndedPeer> ended() = 0;
  /// Reads a file per peer: for messages.
  virtual std::vector<StoppedPeer> stopped() = 0;
};

}  // namespace caravan::shared
