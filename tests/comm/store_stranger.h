#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <thread>

#include "caravan/comm/job_key.h"
#include "caravan/comm/store_socket.h"

/// Connections to a store made byte by byte: what a stranger, or a rank gone mad, can do.
namespace caravan::testing {

store_socket::Fd raw_connection(int port);
/// Greetings are exchanged; `nonce` gets the server's.
store_socket::Fd greeted_connection(int port, std::string& nonce);
/// The handshake is over.
store_socket::Fd member_connection(int port, const JobKey& key = {}, int rank = -1);

/// The server may have closed already.
void send_raw(const store_socket::Fd& fd, std::string_view bytes);
/// Reads until the other side closes; fails the test if it does not.
std::string read_to_end(const store_socket::Fd& fd);

/// Listens on a free `port` and answers the first client with `bytes`; ends when the client leaves.
std::thread impostor(int& port, std::string bytes);

}  // namespace caravan::testing
