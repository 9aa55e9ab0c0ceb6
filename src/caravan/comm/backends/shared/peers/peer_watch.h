#pragma once

#include <string>
#include <vector>

namespace caravan::shared {

struct EndedPeer {
  int world_rank = 0;
  std::string fact;  ///< "its process 1234 has ended"
};

/// A peer whose process is stopped by SIGSTOP, a terminal or a debugger; it may be continued.
struct StoppedPeer {
  int world_rank = 0;
  int number = 0;  ///< its process id in this process's namespace
};

/// Detects peers whose processes have ended or are stopped.
class PeerWatch {
 public:
  virtual ~PeerWatch() = default;
  /// Cheap enough to call every 50 ms.
  virtual std::vector<EndedPeer> ended() = 0;
  /// Reads a file per peer: only for error messages.
  virtual std::vector<StoppedPeer> stopped() = 0;
};

}  // namespace caravan::shared
