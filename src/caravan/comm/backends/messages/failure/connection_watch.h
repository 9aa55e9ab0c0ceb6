#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "caravan/comm/backends/messages/task_thread.h"
#include "caravan/comm/backends/messages/transport.h"

namespace caravan::messages {

struct LostPeer {
  int world_rank = 0;
  std::string fact;  ///< what the transport reports about the connection
};

/// Detects peers that end without a shutdown notice, whether or not this rank waits for a message from them. From each
/// peer that it watches, a recv of one byte stays open: it completes with the peer's notice or fails with the
/// connection. Every rank watches the next one and rank 0, whose store the failure notices need: two sleeping threads
/// per rank.
class ConnectionWatch {
 public:
  /// Signals `completions` when a peer is lost.
  ConnectionWatch(Transport& transport, int rank, int size, CompletionEvent& completions);

  /// The first peer that was lost.
  std::optional<LostPeer> lost();

  /// The ranks that watch `rank`, to whom it sends its shutdown notice under tag().
  static std::vector<int> watchers_of(int rank, int size);
  static int tag() noexcept;

 private:
  struct OpenRecv {
    OpenRecv() = default;
    ~OpenRecv();
    OpenRecv(const OpenRecv&) = delete;
    OpenRecv& operator=(const OpenRecv&) = delete;

    std::byte notice{};
    std::unique_ptr<Transfer> transfer;
    std::thread thread;
  };
  void wait(OpenRecv& recv, int peer);

  CompletionEvent& completions_;
  std::atomic<bool> has_lost_peer_ = false;
  std::mutex mutex_;
  std::optional<LostPeer> lost_;
  std::vector<std::unique_ptr<OpenRecv>> recvs_;
};

}  // namespace caravan::messages
