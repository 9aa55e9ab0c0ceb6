#include "caravan/comm/store/wire/connection.h"

#include <cerrno>
#include <sys/socket.h>

namespace caravan {

using std::chrono::steady_clock;

bool StoreConnection::read_more() {
  char bytes[16384];
  const ssize_t got = recv(fd.get(), bytes, sizeof(bytes), 0);
  if (got > 0) in.append(bytes, static_cast<size_t>(got));
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

void StoreConnection::flush() {
  while (!out.empty()) {
    const ssize_t sent = send(fd.get(), out.data(), out.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      out.erase(0, static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      out.clear();
      return drop();
    }
  }
}

void StoreConnection::limit(std::chrono::milliseconds stall_timeout) {
  if (!accepted || waiting) return;
  const bool is_idle = in.empty() && out.empty();
  if (is_idle) {
    deadline = store_socket::Deadline::max();
  } else if (deadline == store_socket::Deadline::max()) {
    deadline = steady_clock::now() + stall_timeout;
  }
}

}  // namespace caravan
