#include "caravan/comm/store/wire/host_address.h"

#include <array>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/store/wire/socket.h"

namespace caravan {
namespace {

std::string numeric(const sockaddr* address, socklen_t bytes) {
  std::array<char, NI_MAXHOST> text{};
  const int failure = getnameinfo(address, bytes, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return failure == 0 ? text.data() : "";
}

/// The local address of a datagram socket connected to `to`. Nothing is sent.
std::string address_towards(const addrinfo& to) {
  const Fd fd(socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (connect(fd.get(), to.ai_addr, to.ai_addrlen) != 0) return "";
  sockaddr_storage own{};
  socklen_t bytes = sizeof(own);
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &bytes) != 0) return "";
  return numeric(reinterpret_cast<sockaddr*>(&own), bytes);
}

bool is_loopback(const std::string& address) { return address == "::1" || address.starts_with("127."); }

std::string first_outward_address() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  std::string found;
  for (const ifaddrs* entry = list; entry != nullptr && found.empty(); entry = entry->ifa_next) {
    const bool usable = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_LOOPBACK) == 0;
    if (!usable || entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    found = numeric(entry->ifa_addr, sizeof(sockaddr_in));
  }
  freeifaddrs(list);
  return found;
}

}  // namespace

std::string own_address(const RankInfo& info) {
  const store_socket::Addresses addresses(info.master_addr, info.master_port, false);
  std::string own;
  for (const addrinfo* to = addresses.first(); to != nullptr && own.empty(); to = to->ai_next) {
    own = address_towards(*to);
  }
  if (own.empty()) {
    const std::string why = addresses.error().empty() ? "there is no route to it" : addresses.error();
    throw UsageError({.op = "comm",
                      .subject = fmt::format("MASTER_ADDR {}", info.master_addr),
                      .fact = "cannot be reached from here: " + why,
                      .where = fmt::format("rank {} of {}", info.rank, info.world_size),
                      .action = "set it to a name or address of rank 0's host that every host can resolve and reach"});
  }
  if (is_loopback(own) && info.local_world_size < info.world_size) {
    const std::string outward = first_outward_address();
    if (!outward.empty()) return outward;
  }
  return own;
}

}  // namespace caravan
