#pragma once

#include <string>

#include "caravan/comm/store/wire/socket.h"

namespace caravan::store_socket {

/// Every address of this host, of IPv6 and IPv4.
inline constexpr const char* kAnyAddress = "*";

/// A socket that listens on `address`:`port` (0: any free port). Throws UsageError naming the port if that fails.
Fd listen_on(const std::string& address, int port);

/// The port of a listening socket.
int port_of(int fd);

/// Accepts a client, whose socket is non-blocking and tuned, and sets `peer` to its address. Returns no descriptor on
/// failure, and sets errno.
Fd accept_one(int listener, std::string& peer);

}  // namespace caravan::store_socket
