#pragma once

#include <chrono>
#include <string>

#include "caravan/comm/store_door.h"
#include "caravan/comm/store_socket.h"

namespace caravan {

/// One client. It has at most one request in work: one that sends the next before it has read the answer is dropped,
/// and one that floods or does not read costs one frame of memory.
struct StoreConnection {
  StoreConnection(store_socket::Fd fd_, std::string peer_, const JobKey& key, store_socket::Deadline until)
      : fd(std::move(fd_)), peer(std::move(peer_)), door(key), deadline(until) {}

  /// False if the client is gone.
  bool read_more();
  /// Sends what there is to send, as far as the socket takes it.
  void flush();
  /// Sets the deadline of a member: it has time without end between its requests, not in the middle of one.
  void limit(std::chrono::milliseconds stall_timeout);
  void drop() { fd = store_socket::Fd(); }

  store_socket::Fd fd;
  std::string peer;  ///< its address, for the log
  StoreDoor door;
  std::string in;
  std::string out;
  bool admitted = false;
  bool waiting = false;  ///< its get() waits for `key`
  bool closing = false;  ///< to be closed when `out` is sent
  std::string key;
  /// Of the handshake, of the waiting get(), or of a request or reply that is under way; else none.
  store_socket::Deadline deadline;
};

}  // namespace caravan
