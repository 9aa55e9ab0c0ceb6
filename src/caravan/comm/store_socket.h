#pragma once

#include <chrono>
#include <netdb.h>
#include <string>
#include <string_view>
#include <utility>

namespace caravan::store_socket {

using Deadline = std::chrono::steady_clock::time_point;

/// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// The addresses of a host name or a numeric address; empty with `error` set if it cannot be resolved.
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

/// "system text (name)" of an errno.
std::string system_error(int error);

/// Small messages leave at once, and a host that vanished is noticed within half a minute.
void tune(int fd);

/// One attempt to connect to `host`:`port`; without a descriptor, `error` says why.
Fd try_connect(const std::string& host, int port, Deadline deadline, std::string& error);

enum class Outcome { done, timed_out, closed };

/// Sends or receives all bytes of a non-blocking socket, or says why not.
Outcome send_all(int fd, std::string_view bytes, Deadline deadline);
Outcome receive_all(int fd, char* data, size_t bytes, Deadline deadline);

}  // namespace caravan::store_socket
