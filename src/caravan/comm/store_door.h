#pragma once

#include <string>

#include "caravan/comm/job_key.h"

namespace caravan {

/// The server's side of one client's handshake (store_handshake.h): bytes in, bytes out, no socket.
class StoreDoor {
 public:
  enum class State { waits, admitted, refused };

  explicit StoreDoor(const JobKey& key) : key_(&key) {}  ///< `key` outlives it

  /// Takes what it understands off the front of `in` and appends its answers to `out`. Refused: the connection is to
  /// be closed when `out` is sent.
  State take(std::string& in, std::string& out);

  /// Why it was refused, for the log.
  const std::string& reason() const noexcept { return reason_; }
  /// Who was admitted; -1 if it did not say.
  int rank() const noexcept { return rank_; }

 private:
  State take_greeting(std::string& in, std::string& out);
  State take_hello(std::string& in, std::string& out);
  State refuse(std::string reason);

  const JobKey* key_;
  bool greeted_ = false;
  std::string nonce_;
  std::string reason_;
  int rank_ = -1;
};

/// Bytes of a stranger as a line of a log shows them: at most `most`, what is not printable as \x.
std::string printable(std::string_view bytes, size_t most);

}  // namespace caravan
