#include "caravan/data/chat/template_channel.h"

#include <cerrno>
#include <cstring>
#include <sys/socket.h>

namespace caravan {
namespace {

bool send_all(int socket, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t sent = ::send(socket, data, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    data += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

bool receive_all(int socket, char* data, size_t size) {
  while (size > 0) {
    const ssize_t got = ::recv(socket, data, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    data += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

}  // namespace

bool send_frame(int socket, std::string_view frame) {
  const uint64_t length = frame.size();
  char head[sizeof length];
  std::memcpy(head, &length, sizeof length);
  return send_all(socket, head, sizeof head) && send_all(socket, frame.data(), frame.size());
}

std::optional<std::string> receive_frame(int socket) {
  uint64_t length = 0;
  char head[sizeof length];
  if (!receive_all(socket, head, sizeof head)) return std::nullopt;
  std::memcpy(&length, head, sizeof length);
  std::string frame(length, '\0');
  if (!receive_all(socket, frame.data(), frame.size())) return std::nullopt;
  return frame;
}

}  // namespace caravan
