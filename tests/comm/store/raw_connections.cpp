#include "tests/comm/store/raw_connections.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <gtest/gtest.h>

#include "caravan/comm/store/secret/handshake.h"
#include "caravan/comm/store/secret/secret.h"
#include "caravan/comm/store/wire/listen.h"
#include "caravan/comm/store/wire/protocol.h"

namespace caravan::testing {

using namespace store_socket;
using namespace store_protocol;

namespace {

Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(20); }

std::string receive(const Fd& fd, size_t bytes) {
  std::string out(bytes, '\0');
  EXPECT_EQ(receive_all(fd.get(), out.data(), out.size(), soon()), Outcome::done);
  return out;
}

}  // namespace

Fd raw_connection(int port) {
  std::string error;
  Fd fd = try_connect("127.0.0.1", port, soon(), error);
  EXPECT_TRUE(fd) << error;
  return fd;
}

Fd greeted_connection(int port, std::string& nonce) {
  Fd fd = raw_connection(port);
  send_raw(fd, greeting());
  EXPECT_EQ(receive(fd, kGreetingBytes), greeting());
  nonce = receive(fd, store_secret::kNonceBytes);
  return fd;
}

Fd member_connection(int port, const JobKey& key, int rank) {
  std::string nonce;
  Fd fd = greeted_connection(port, nonce);
  const std::string own_nonce(store_secret::kNonceBytes, 'n');
  send_raw(fd, encode_hello(key, rank, nonce, own_nonce));
  const std::string body = receive(fd, body_bytes(receive(fd, kLengthBytes)));
  const auto answer = decode_answer(body);
  EXPECT_TRUE(answer && answer->verdict == Verdict::welcome && is_genuine(key, nonce, own_nonce, *answer));
  return fd;
}

void send_raw(const Fd& fd, std::string_view bytes) { send_all(fd.get(), bytes, soon()); }

std::string read_to_end(const Fd& fd) {
  std::string all;
  char byte = 0;
  for (;;) {
    const Outcome outcome = receive_all(fd.get(), &byte, 1, soon());
    if (outcome == Outcome::done) all.push_back(byte);
    if (outcome == Outcome::timed_out) ADD_FAILURE() << "the server kept the connection";
    if (outcome != Outcome::done) return all;
  }
}

std::thread impostor(int& port, std::string bytes) {
  Fd listener = listen_on("127.0.0.1", 0);
  port = port_of(listener.get());
  return std::thread([listener = std::move(listener), bytes = std::move(bytes)] {
    std::string peer;
    Fd client;
    while (!(client = accept_one(listener.get(), peer))) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    send_all(client.get(), bytes, soon());
    char byte = 0;
    while (receive_all(client.get(), &byte, 1, soon()) == Outcome::done) {
    }
  });
}

}  // namespace caravan::testing
