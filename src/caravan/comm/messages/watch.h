#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "caravan/comm/messages/lane.h"
#include "caravan/comm/messages/transport.h"

namespace caravan::messages {

struct LostPeer {
  int world_rank = 0;
  std::string fact;  ///< what the transport says of the connection
};

/// Learns of peers that end without taking leave, whether or not this rank waits for anything of theirs: a recv of one
/// byte stands open from each that is watched, which comes as its goodbye, or fails with the connection. Every rank
/// watches the next one, and rank 0, whose store the news of the others go by: two threads a rank, asleep.
class Watch {
 public:
  /// Rings `bell` when there is news.
  Watch(Transport& transport, int rank, int size, Bell& bell);

  /// The first that was lost.
  std::optional<LostPeer> lost();

  /// The ranks that watch `rank`, to whom its goodbye is sent under tag().
  static std::vector<int> watchers_of(int rank, int size);
  static int tag() noexcept;

 private:
  struct Open {
    Open() = default;
    ~Open();
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

    std::byte letter{};
    std::unique_ptr<Transfer> transfer;
    std::thread thread;
  };
  void wait(Open& open, int peer);

  Bell& bell_;
  std::atomic<bool> has_news_ = false;
  std::mutex mutex_;
  std::optional<LostPeer> lost_;
  std::vector<std::unique_ptr<Open>> open_;
};

}  // namespace caravan::messages
