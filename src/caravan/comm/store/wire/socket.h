#pragma once

#include <chrono>
#include <netdb.h>
#include <string>
#include <string_view>

#include "caravan/base/system/fd.h"

namespace caravan::store_socket {

using Deadline = std::chrono::steady_clock::time_point;

/// The addresses of a host name or numeric address. If it cannot be resolved there are none, and `error` says why.
class Addresses {
 public:
  Addresses(const std::string& host, int port, bool to_bind);
  ~Addresses();
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  const addrinfo* first() const noexcept { return list_; }
  const std::string& error() const noexcept { return error_; }

 private:
  addrinfo* list_ = nullptr;
  std::string error_;
};

/// Disables Nagle's algorithm, and sets keep-alive to detect a dead host within half a minute.
void tune(int fd);

/// Tries once to connect to `host`:`port`. Returns no descriptor on failure, and sets `error`.
Fd try_connect(const std::string& host, int port, Deadline deadline, std::string& error);

enum class Outcome { done, timed_out, closed };

/// Sends or receives all bytes on a non-blocking socket.
Outcome send_all(int fd, std::string_view bytes, Deadline deadline);
Outcome receive_all(int fd, char* data, size_t bytes, Deadline deadline);

}  // namespace caravan::store_socket
