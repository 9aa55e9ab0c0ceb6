#pragma once

#include <string>

#include "caravan/comm/store/secret/job_key.h"

namespace caravan {

/// The server's side of the handshake with one client (see handshake.h): bytes in, bytes out, no socket.
class ServerHandshake {
 public:
  enum class State { pending, accepted, rejected };

  explicit ServerHandshake(const JobKey& key) : key_(&key) {}  ///< `key` outlives it

  /// Consumes complete messages at the front of `in` and appends the answers to `out`. If rejected, close the
  /// connection once `out` is sent.
  State advance(std::string& in, std::string& out);

  /// Why the client was rejected, for the log.
  const std::string& reason() const noexcept { return reason_; }
  /// The rank of the client; -1 if it gave none.
  int rank() const noexcept { return rank_; }

 private:
  State read_greeting(std::string& in, std::string& out);
  State read_hello(std::string& in, std::string& out);
  State reject(std::string reason);

  const JobKey* key_;
  bool greeted_ = false;
  std::string nonce_;
  std::string reason_;
  int rank_ = -1;
};

/// At most `most` untrusted bytes, escaped for a log: what is not printable becomes \xNN.
std::string printable(std::string_view bytes, size_t most);

}  // namespace caravan
