#pragma once

#include <chrono>
#include <string>
#include <utility>

namespace caravan {

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

/// Waits for `events` of poll; false when the deadline passes.
bool wait_for_events(int fd, short events, std::chrono::steady_clock::time_point deadline);

/// "No such file or directory (ENOENT)": an errno in words.
std::string system_error(int error);

}  // namespace caravan
