#pragma once

#include <chrono>
#include <string>

#include "caravan/comm/store/secret/server_handshake.h"
#include "caravan/comm/store/wire/socket.h"

namespace caravan {

/// The server's end of one client's connection. At most one request is in progress: a client that sends the next one
/// before it has read the reply is dropped. A client that floods, or does not read, costs one frame of memory.
struct StoreConnection {
  StoreConnection(Fd fd_, std::string peer_, const JobKey& key, store_socket::Deadline until)
      : fd(std::move(fd_)), peer(std::move(peer_)), handshake(key), deadline(until) {}

  /// False if the client has disconnected.
  bool read_more();
  /// Sends as much of `out` as the socket takes.
  void flush();
  /// Sets the deadline of an accepted client: none between requests, `stall_timeout` within one.
  void limit(std::chrono::milliseconds stall_timeout);
  void drop() { fd = Fd(); }

  Fd fd;
  std::string peer;  ///< its address, for the log
  ServerHandshake handshake;
  std::string in;
  std::string out;
  bool accepted = false;  ///< the handshake is complete
  bool waiting = false;   ///< a get() waits for `key`
  bool closing = false;   ///< close when `out` is sent
  std::string key;
  /// Limits the handshake, a waiting get(), or a request or reply in flight; otherwise none.
  store_socket::Deadline deadline;
};

}  // namespace caravan
