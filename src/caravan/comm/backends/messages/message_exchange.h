#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "caravan/comm/backends/messages/task_thread.h"
#include "caravan/comm/backends/messages/transport.h"

namespace caravan::messages {

/// Why a task failed, as far as its thread knows. The communicator makes the error of it.
struct PeerLost {
  int peer;
  std::string fact;
};
struct PeersMissing {
  std::vector<int> peers;
};

/// Transfers that are in flight together. Declare their buffers before it: a late message may write to them until it is
/// destroyed.
class MessageExchange {
 public:
  MessageExchange(TaskThread& thread, Transport& transport, const std::vector<int>& world_ranks, int tag)
      : thread_(thread), transport_(transport), world_ranks_(world_ranks), tag_(tag) {}

  void send(int peer, const std::byte* data, int64_t bytes) { send(peer, data, bytes, tag_); }
  void recv(int peer, std::byte* data, int64_t bytes) { recv(peer, data, bytes, tag_); }
  void send(int peer, const std::byte* data, int64_t bytes, int tag);
  void recv(int peer, std::byte* data, int64_t bytes, int tag);
  /// Waits for all of them. Throws PeerLost or PeersMissing.
  void finish();

 private:
  struct Posted {
    int peer;
    std::unique_ptr<Transfer> transfer;
  };
  template <class Post>
  void post(int peer, int64_t bytes, const Post& post);

  TaskThread& thread_;
  Transport& transport_;
  const std::vector<int>& world_ranks_;
  int tag_;
  std::vector<Posted> posted_;
};

}  // namespace caravan::messages
