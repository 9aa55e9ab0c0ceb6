#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <thread>

#include "caravan/comm/store/secret/job_key.h"
#include "caravan/comm/store/wire/socket.h"

/// Connections to a store that send arbitrary bytes.
namespace caravan::testing {

Fd raw_connection(int port);
/// After the greetings. Sets `nonce` to the server's.
Fd greeted_connection(int port, std::string& nonce);
/// After the handshake.
Fd member_connection(int port, const JobKey& key = {}, int rank = -1);

/// The server may have closed the connection already.
void send_raw(const Fd& fd, std::string_view bytes);
/// Reads until the other side closes; fails the test if it does not.
std::string read_to_end(const Fd& fd);

/// Listens on a free `port` and answers the first client with `bytes`. Ends when the client disconnects.
std::thread impostor(int& port, std::string bytes);

}  // namespace caravan::testing
