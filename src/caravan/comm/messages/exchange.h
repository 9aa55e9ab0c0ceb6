#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "caravan/comm/messages/lane.h"
#include "caravan/comm/messages/transport.h"

namespace caravan::messages {

/// Why a job ended badly, as far as the lane knows; the communicator makes the error of it.
struct PeerLost {
  int peer;
  std::string fact;
};
struct PeersMissing {
  std::vector<int> peers;
};

/// Transfers that are on their way together. Declare their buffers before it: until it is gone, a late message may
/// write there.
class Exchange {
 public:
  Exchange(Lane& lane, Transport& transport, const std::vector<int>& world_ranks, int tag)
      : lane_(lane), transport_(transport), world_ranks_(world_ranks), tag_(tag) {}

  void send(int peer, const std::byte* data, int64_t bytes) { send(peer, data, bytes, tag_); }
  void recv(int peer, std::byte* data, int64_t bytes) { recv(peer, data, bytes, tag_); }
  void send(int peer, const std::byte* data, int64_t bytes, int tag);
  void recv(int peer, std::byte* data, int64_t bytes, int tag);
  /// Waits for all. Throws PeerLost or PeersMissing.
  void finish();

 private:
  struct Posted {
    int peer;
    std::unique_ptr<Transfer> transfer;
  };

  Lane& lane_;
  Transport& transport_;
  const std::vector<int>& world_ranks_;
  int tag_;
  std::vector<Posted> posted_;
};

}  // namespace caravan::messages
