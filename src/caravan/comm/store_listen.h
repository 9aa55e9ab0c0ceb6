#pragma once

#include <string>

#include "caravan/comm/store_socket.h"

namespace caravan::store_socket {

/// A socket that listens on `address`:`port` (0: any free port). Throws UsageError if it cannot, naming the port.
Fd listen_on(const std::string& address, int port);

/// The port a listening socket has.
int port_of(int fd);

/// The next client, tuned and non-blocking, with its address in `peer`; without one, errno says why.
Fd accept_one(int listener, std::string& peer);

}  // namespace caravan::store_socket
