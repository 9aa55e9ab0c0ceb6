#include "caravan/comm/backends/shared/peers/local_socket.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan::shared {
namespace {

constexpr int kType = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;

Fd new_socket() {
  Fd fd(socket(AF_UNIX, kType, 0));
  if (fd) return fd;
  throw ResourceError({.op = "shared memory",
                       .fact = fmt::format("cannot open a local socket: {}", system_error(errno)),
                       .action = "raise the limit of open files (ulimit -n)"});
}

/// An abstract address: a zero byte, then the name.
socklen_t fill_address(sockaddr_un& address, std::string_view name) {
  address.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

/// Ancillary data with one descriptor.
struct alignas(cmsghdr) Control {
  std::array<char, CMSG_SPACE(sizeof(int))> bytes{};
};

}  // namespace

void Packet::set_text(std::string_view from) noexcept {
  const size_t length = std::min(from.size(), text.size() - 1);
  std::memcpy(text.data(), from.data(), length);
  text[length] = '\0';
}

LocalSocket LocalSocket::listen(int backlog) {
  Fd fd = new_socket();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // An address with only a family: the kernel chooses a free abstract name.
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)) != 0 ||
      ::listen(fd.get(), backlog) != 0) {
    throw ResourceError({.op = "shared memory",
                         .fact = fmt::format("cannot listen on a local socket: {}", system_error(errno)),
                         .action = "use the back-end gloo"});
  }
  return LocalSocket(std::move(fd));
}

std::string LocalSocket::name() const {
  sockaddr_un address{};
  socklen_t length = sizeof(address);
  getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return {address.sun_path + 1, length - offsetof(sockaddr_un, sun_path) - 1};
}

std::optional<LocalSocket> LocalSocket::connect(const std::string& name, Deadline deadline) {
  sockaddr_un address{};
  const socklen_t length = fill_address(address, name);
  Fd fd = new_socket();
  while (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    if (errno != EAGAIN && errno != EINTR) return std::nullopt;
    if (std::chrono::steady_clock::now() >= deadline) return std::nullopt;
    poll(nullptr, 0, 1);  // the backlog of the listener is full
  }
  return LocalSocket(std::move(fd));
}

std::optional<LocalSocket> LocalSocket::accept(Deadline deadline) const {
  while (wait_for_events(fd_.get(), POLLIN, deadline)) {
    Fd fd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) return LocalSocket(std::move(fd));
    if (errno == EMFILE || errno == ENFILE) {
      throw ResourceError({.op = "shared memory",
                           .fact = fmt::format("cannot accept a rank: {}", system_error(errno)),
                           .action = "raise the limit of open files (ulimit -n)"});
    }
  }
  return std::nullopt;
}

uid_t LocalSocket::peer_user() const {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return static_cast<uid_t>(-1);
  return peer.uid;
}

bool LocalSocket::send(const Packet& packet, int descriptor, Deadline deadline) const {
  iovec part{const_cast<Packet*>(&packet), sizeof(packet)};
  Control control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  while (wait_for_events(fd_.get(), POLLOUT, deadline)) {
    if (sendmsg(fd_.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(packet))) return true;
    // ETOOMANYREFS: too many descriptors are in flight; receivers have to accept some first.
    if (errno == ETOOMANYREFS) poll(nullptr, 0, 1);
    if (errno != EAGAIN && errno != EINTR && errno != ETOOMANYREFS) return false;
  }
  return false;
}

std::optional<ReceivedPacket> LocalSocket::receive(Deadline deadline) const {
  ReceivedPacket received;
  while (wait_for_events(fd_.get(), POLLIN, deadline)) {
    iovec part{&received.packet, sizeof(received.packet)};
    Control control;
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    const ssize_t got = recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    for (cmsghdr* header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr; header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
      received.descriptor = Fd(descriptor);
    }
    if (got != static_cast<ssize_t>(sizeof(Packet))) return std::nullopt;
    received.packet.text.back() = '\0';
    return received;
  }
  return std::nullopt;
}

}  // namespace caravan::shared
