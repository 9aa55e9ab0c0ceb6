#include "caravan/comm/store/wire/listen.h"

#include <array>
#include <cerrno>
#include <netinet/in.h>
#include <optional>
#include <sys/socket.h>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan::store_socket {
namespace {

/// Returns no descriptor on failure, and sets errno.
Fd try_listen(const addrinfo& address, bool takes_ipv4) {
  Fd fd(socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return fd;
  const int on = 1;
  const int off = 0;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (takes_ipv4 && setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) != 0) return {};
  const bool listens = bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0 && listen(fd.get(), 1024) == 0;
  return listens ? std::move(fd) : Fd();
}

/// "10.0.0.7:41822", "[fd00::7]:41822".
std::string text_of(const sockaddr_storage& address, socklen_t bytes) {
  std::array<char, NI_MAXHOST> name{};
  std::array<char, NI_MAXSERV> port{};
  const int failure = getnameinfo(reinterpret_cast<const sockaddr*>(&address), bytes, name.data(), name.size(),
                                  port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV);
  if (failure != 0) return "an unknown address";
  std::string_view host = name.data();
  constexpr std::string_view kMapped = "::ffff:";  // an IPv4 client of an IPv6 socket
  if (host.starts_with(kMapped)) host.remove_prefix(kMapped.size());
  const bool is_ipv6 = host.find(':') != std::string_view::npos;
  return is_ipv6 ? fmt::format("[{}]:{}", host, port.data()) : fmt::format("{}:{}", host, port.data());
}

}  // namespace

Fd listen_on(const std::string& address, int port) {
  const std::string subject = fmt::format("{}:{}", address, port);
  const auto refuse = [&](std::string fact, std::string action) {
    return UsageError(
        {.op = "store", .subject = subject, .fact = std::move(fact), .where = "", .action = std::move(action)});
  };
  if (port < 0 || port > 65535) throw refuse(fmt::format("{} is not a port", port), "choose one from 1024 to 65535");
  const bool is_any = address == kAnyAddress;
  std::optional<Addresses> addresses(std::in_place, is_any ? "::" : address, port, true);
  if (addresses->first() == nullptr) throw refuse(addresses->error(), "use a name or an address of this host");
  if (Fd fd = try_listen(*addresses->first(), is_any)) return fd;
  if (is_any && errno != EADDRINUSE) {  // a host without IPv6
    addresses.emplace("0.0.0.0", port, true);
    if (Fd fd = try_listen(*addresses->first(), false)) return fd;
  }
  if (errno == EADDRINUSE) {
    throw refuse(
        fmt::format("port {} is in use by another program, or by another rank 0", port),
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
  peer = text_of(from, bytes);
  return fd;
}

}  // namespace caravan::store_socket
