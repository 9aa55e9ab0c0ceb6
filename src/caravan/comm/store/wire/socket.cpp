#include "caravan/comm/store/wire/socket.h"

#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

namespace caravan::store_socket {
namespace {

/// A connect to an unused local port may get that port as its own and so connect to itself.
bool is_connected_to_itself(int fd) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_bytes = sizeof(own);
  socklen_t peer_bytes = sizeof(peer);
  return getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_bytes) == 0 &&
         getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_bytes) == 0 && own_bytes == peer_bytes &&
         std::memcmp(&own, &peer, own_bytes) == 0;
}

Fd connect_one(const addrinfo& address, Deadline deadline, std::string& error) {
  Fd fd(socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) {
    error = system_error(errno);
    return {};
  }
  int failure = connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (failure == EINPROGRESS) {
    if (!wait_for_events(fd.get(), POLLOUT, deadline)) {
      error = "no reply";
      return {};
    }
    socklen_t bytes = sizeof(failure);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &failure, &bytes);
  }
  if (failure == 0 && is_connected_to_itself(fd.get())) failure = ECONNREFUSED;
  if (failure != 0) {
    error = system_error(failure);
    return {};
  }
  tune(fd.get());
  return fd;
}

}  // namespace

Addresses::Addresses(const std::string& host, int port, bool to_bind) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (to_bind ? AI_PASSIVE : 0);
  const int failure = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list_);
  if (failure != 0) {
    list_ = nullptr;
    error_ = failure == EAI_SYSTEM ? system_error(errno) : gai_strerror(failure);
  }
}

Addresses::~Addresses() {
  if (list_ != nullptr) freeaddrinfo(list_);
}

void tune(int fd) {
  const auto set = [fd](int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof(value)); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
}

Fd try_connect(const std::string& host, int port, Deadline deadline, std::string& error) {
  const Addresses addresses(host, port, false);
  error = addresses.error();
  for (const addrinfo* address = addresses.first(); address != nullptr; address = address->ai_next) {
    if (Fd fd = connect_one(*address, deadline, error)) return fd;
  }
  return {};
}

Outcome send_all(int fd, std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!wait_for_events(fd, POLLOUT, deadline)) return Outcome::timed_out;
    } else if (errno != EINTR) {
      return Outcome::closed;
    }
  }
  return Outcome::done;
}

Outcome receive_all(int fd, char* data, size_t bytes, Deadline deadline) {
  while (bytes > 0) {
    const ssize_t got = recv(fd, data, bytes, 0);
    if (got > 0) {
      data += got;
      bytes -= static_cast<size_t>(got);
    } else if (got < 0 && errno == EAGAIN) {
      if (!wait_for_events(fd, POLLIN, deadline)) return Outcome::timed_out;
    } else if (got == 0 || errno != EINTR) {
      return Outcome::closed;
    }
  }
  return Outcome::done;
}

}  // namespace caravan::store_socket
