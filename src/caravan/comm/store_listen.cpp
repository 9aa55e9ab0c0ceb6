#include "caravan/comm/store_listen.h"

#include <array>
#include <cerrno>
#include <netinet/in.h>
#include <sys/socket.h>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan::store_socket {

Fd listen_on(const std::string& address, int port) {
  const std::string subject = fmt::format("{}:{}", address, port);
  const auto refuse = [&](std::string fact, std::string action) {
    return UsageError(
        {.op = "store", .subject = subject, .fact = std::move(fact), .where = "", .action = std::move(action)});
  };
  if (port < 0 || port > 65535) throw refuse(fmt::format("{} is not a port", port), "choose one from 1024 to 65535");
  const Addresses addresses(address, port, true);
  if (addresses.first() == nullptr) throw refuse(addresses.error(), "use a name or an address of this host");
  const addrinfo& where = *addresses.first();
  Fd fd(socket(where.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (fd && bind(fd.get(), where.ai_addr, where.ai_addrlen) == 0 && listen(fd.get(), 1024) == 0) return fd;
  if (errno == EADDRINUSE) {
    throw refuse(
        fmt::format("port {} is in use by another program", port),
        fmt::format("end that program (ss -ltnp 'sport = :{}' shows it), or set MASTER_PORT to another port", port));
  }
  if (errno == EADDRNOTAVAIL) {
    throw refuse("this is not an address of this host", "set MASTER_ADDR to the host of rank 0");
  }
  throw refuse(fmt::format("cannot listen: {}", system_error(errno)), "choose another port");
}

int port_of(int fd) {
  sockaddr_storage bound{};
  socklen_t bytes = sizeof(bound);
  getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &bytes);
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

Fd accept_one(int listener, std::string& peer) {
  sockaddr_storage from{};
  socklen_t bytes = sizeof(from);
  Fd fd(accept4(listener, reinterpret_cast<sockaddr*>(&from), &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd) return fd;
  tune(fd.get());
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  const int failure = getnameinfo(reinterpret_cast<sockaddr*>(&from), bytes, host.data(), host.size(), port.data(),
                                  port.size(), NI_NUMERICHOST | NI_NUMERICSERV);
  peer = failure == 0 ? fmt::format("{}:{}", host.data(), port.data()) : "an unknown address";
  return fd;
}

}  // namespace caravan::store_socket
