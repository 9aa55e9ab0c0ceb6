#include <algorithm>
#include <gmock/gmock.h>
#include <random>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/comm/store/wire/protocol.h"
#include "caravan/comm/store/wire/socket.h"
#include "tests/comm/store/raw_connections.h"

namespace caravan::store_server_test {
namespace {

using namespace store_socket;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::impostor;
using testing::member_connection;
using testing::raw_connection;
using testing::read_to_end;
using testing::send_raw;
using ::testing::ThrowsMessage;

constexpr milliseconds kTimeout{20'000};

void expect_alive(int port) {
  const auto store = connect_store("127.0.0.1", port, kTimeout);
  store->set("alive", "yes");
  EXPECT_EQ(store->get("alive", kTimeout), "yes");
}

TEST(StoreServer, ManyClientsMeet) {
  const StoreServer server("127.0.0.1", 0);
  constexpr int kClients = 200;
  std::vector<std::shared_ptr<Store>> clients;
  for (int i = 0; i < kClients; ++i) clients.push_back(connect_store("localhost", server.port(), kTimeout));
  for (int i = 0; i < kClients; ++i) clients[i]->set("rank/" + std::to_string(i), std::to_string(i * i));
  for (int i = 0; i < kClients; ++i) {
    const int peer = (i * 7 + 3) % kClients;
    EXPECT_EQ(clients[i]->get("rank/" + std::to_string(peer), kTimeout), std::to_string(peer * peer));
  }
}

TEST(StoreServer, KnowsWhichRanksHaveDisconnected) {
  const StoreServer server("127.0.0.1", 0);
  const auto one = connect_store("127.0.0.1", server.port(), kTimeout, {}, 1);
  auto two = connect_store("127.0.0.1", server.port(), kTimeout, {}, 2);
  EXPECT_FALSE(one->has_disconnected(2));
  EXPECT_FALSE(one->has_disconnected(3)) << "it has not connected yet";
  two->set("said", "before");
  two.reset();
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  EXPECT_EQ(get_from(*one, "said", 2, deadline), "before");
  EXPECT_EQ(get_from(*one, "unsaid", 2, deadline), std::nullopt);
  EXPECT_LT(std::chrono::steady_clock::now(), deadline);
  EXPECT_TRUE(prefixed(one, "part", {1, 2})->has_disconnected(1)) << "rank 1 of the part";
  two = connect_store("127.0.0.1", server.port(), kTimeout, {}, 2);
  EXPECT_FALSE(one->has_disconnected(2));
}

TEST(StoreServer, ClientsMayComeFirst) {
  int port = 0;
  { port = StoreServer("127.0.0.1", 0).port(); }
  std::atomic<bool> started{false};
  std::thread early([&] {
    started = true;
    connect_store("127.0.0.1", port, kTimeout)->set("early", "bird");
  });
  while (!started) std::this_thread::yield();
  std::this_thread::sleep_for(milliseconds(100));  // several refused attempts; passes without them too
  const StoreServer server("127.0.0.1", port);
  EXPECT_EQ(connect_store("127.0.0.1", port, kTimeout)->get("early", kTimeout), "bird");
  early.join();
}

TEST(StoreServer, AMissingServerIsAnErrorWithItsAddress) {
  int port = 0;
  { port = StoreServer("127.0.0.1", 0).port(); }
  EXPECT_THAT([&] { connect_store("127.0.0.1", port, milliseconds(60)); },
              ThrowsMessage<CommError>(
                  AllOf(HasSubstr(std::to_string(port)), HasSubstr("ECONNREFUSED"), HasSubstr("MASTER_PORT"))));
  EXPECT_THAT([&] { connect_store("no-such-host.invalid", 29500, milliseconds(60)); },
              ThrowsMessage<CommError>(HasSubstr("no-such-host.invalid:29500")));
}

TEST(StoreServer, AUsedPortIsNamed) {
  const StoreServer first("127.0.0.1", 0);
  EXPECT_THAT([&] { StoreServer second("127.0.0.1", first.port()); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr(std::to_string(first.port())), HasSubstr("in use"),
                                              HasSubstr("do: end that program"), HasSubstr("MASTER_PORT"))));
  expect_alive(first.port());
}

TEST(StoreServer, RefusesAddressesOfOtherHosts) {
  EXPECT_THAT([] { StoreServer("192.0.2.1", 0); }, ThrowsMessage<UsageError>(HasSubstr("not an address of this host")));
  EXPECT_THROW(StoreServer("127.0.0.1", 65536), UsageError);
  EXPECT_THROW(StoreServer("127.0.0.1", -1), UsageError);
}

TEST(StoreServer, AnyAddressTakesBothFamilies) {
  const StoreServer server("*", 0);
  expect_alive(server.port());
  try {
    StoreServer("::1", 0);
  } catch (const UsageError&) {
    GTEST_SKIP() << "this host has no IPv6";
  }
  connect_store("::1", server.port(), kTimeout)->set("by", "IPv6");
  EXPECT_EQ(connect_store("127.0.0.1", server.port(), kTimeout)->get("by", kTimeout), "IPv6");
  EXPECT_THAT([&] { StoreServer("*", server.port()); }, ThrowsMessage<UsageError>(HasSubstr("in use")));
}

/// Runs in a separate process, which runs out of descriptors at each place in turn.
TEST(StoreServer, WithoutDescriptorsLeftIsAnError) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);
    rlimit given{};
    getrlimit(RLIMIT_NOFILE, &given);
    rlimit limit = given;
    const int next = dup(0);
    close(next);
    int refused = 0;
    bool is_served = false;
    for (int left = 0; left < 10 && !is_served; ++left) {
      limit.rlim_cur = static_cast<rlim_t>(next + left);
      setrlimit(RLIMIT_NOFILE, &limit);
      try {
        StoreServer("127.0.0.1", 0);
        is_served = true;
      } catch (const Error&) {
        ++refused;
        // UndefinedBehaviorSanitizer needs descriptors to look at the type of the error, which ends here.
        setrlimit(RLIMIT_NOFILE, &given);
      }
    }
    _exit(is_served && refused >= 2 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status) << ": it hung";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

/// While the server accepts connections, 400 more and a request of a rank arrive. The request does not wait for all of
/// them. Each connection above the limit closes the oldest one, so the number of closed ones shows how many the server
/// had accepted when it replied. It may have accepted more until they are counted: one of five attempts must show it.
TEST(StoreServer, AFloodOfConnectionsDoesNotStarveRanks) {
  constexpr int kFlood = 400;
  int num_closed = kFlood;
  for (int attempt = 0; attempt < 5 && num_closed >= kFlood / 2; ++attempt) {
    std::vector<Fd> connections;
    std::vector<Fd> flood;
    Fd member;
    std::atomic<int> port{0};
    const LogLine log = [&](const std::string& line) {  // on the server's thread, while it accepts
      if (line.find("too many connections") == std::string::npos || !flood.empty()) return;
      for (int i = 0; i < kFlood; ++i) flood.push_back(raw_connection(port));
      send_raw(member, store_protocol::encode(store_protocol::Request{store_protocol::Verb::has, "key", {}}));
    };
    const StoreServer server("127.0.0.1", 0, {.log = log});
    port = server.port();
    member = member_connection(port);
    for (int i = 0; i < 257; ++i) connections.push_back(raw_connection(port));  // one too many
    std::string reply(4 + 1 + 1, '\0');
    ASSERT_EQ(receive_all(member.get(), reply.data(), reply.size(), steady_clock::now() + kTimeout), Outcome::done);
    char byte = 0;
    num_closed = static_cast<int>(
        std::ranges::count_if(connections, [&](const Fd& fd) { return recv(fd.get(), &byte, 1, MSG_DONTWAIT) == 0; }));
    if (num_closed == 257) num_closed = kFlood;
  }
  EXPECT_LT(num_closed, kFlood / 2);
}

TEST(StoreServer, GarbageIsRefusedWithoutHarm) {
  const StoreServer server("127.0.0.1", 0);
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::string garbage(1 + random() % 3000, '\0');
    for (char& byte : garbage) byte = static_cast<char>(random());
    const Fd client_of_another_program = raw_connection(server.port());
    send_raw(client_of_another_program, garbage);
    shutdown(client_of_another_program.get(), SHUT_WR);
    read_to_end(client_of_another_program);
    // The same after a right greeting: garbage in place of a frame.
    const Fd client = member_connection(server.port());
    garbage.replace(0, std::min<size_t>(4, garbage.size()), std::string("\x10\0\0\0", 4));
    send_raw(client, garbage);
    shutdown(client.get(), SHUT_WR);
    read_to_end(client);
  }
  const Fd browser = raw_connection(server.port());
  send_raw(browser, "GET / HTTP/1.1\r\n\r\n");
  EXPECT_EQ(read_to_end(browser), store_protocol::greeting());
  expect_alive(server.port());
}

TEST(StoreServer, OversizedAndMalformedFramesCloseTheConnection) {
  const StoreServer server("127.0.0.1", 0);
  using store_protocol::encode;
  using store_protocol::Verb;
  std::string huge_key = encode(store_protocol::Request{Verb::set, "k", "v"});
  huge_key[5] = '\xff';  // the key is longer than its frame
  std::string no_verb = encode(store_protocol::Request{Verb::set, "k", "v"});
  no_verb[4] = 9;
  const std::string set = encode(store_protocol::Request{Verb::set, "k", "v"});
  for (const std::string& bytes : {
           std::string("\xff\xff\xff\xff", 4),                        // 4 GiB are announced
           std::string("\0\0\0\0", 4),                                // an empty request
           std::string("\x01\0\0\0\x02", 5),                          // a get without a key length
           encode(store_protocol::Request{Verb::add, "k", "short"}),  // a number of 5 bytes
           encode(store_protocol::Request{Verb::get, "k", "too long it is"}),
           encode(store_protocol::Request{Verb::set, std::string(5000, 'k'), ""}),
           set + set,  // two requests at once
           huge_key,
           no_verb,
       }) {
    const Fd client = member_connection(server.port());
    send_raw(client, bytes);
    EXPECT_EQ(read_to_end(client).size() % 5, 0U);  // nothing, or the answer to a first whole request
  }
  expect_alive(server.port());
}

TEST(StoreServer, ClientRefusesWhatTheServerWould) {
  const StoreServer server("127.0.0.1", 0);
  const auto store = connect_store("127.0.0.1", server.port(), kTimeout);
  const std::string largest(store_protocol::kMaxValueBytes, 'x');
  store->set(std::string(store_protocol::kMaxKeyBytes, 'k'), largest);
  EXPECT_EQ(store->get(std::string(store_protocol::kMaxKeyBytes, 'k'), kTimeout), largest);
  EXPECT_THROW(store->set("k", largest + "x"), UsageError);
  EXPECT_THROW(store->has(std::string(store_protocol::kMaxKeyBytes + 1, 'k')), UsageError);
}

TEST(StoreServer, HalfOpenConnectionsDoNotDelayOthers) {
  const StoreServer server("127.0.0.1", 0);
  std::vector<Fd> silent;
  for (int i = 0; i < 30; ++i) {
    silent.push_back(raw_connection(server.port()));
    if (i % 3 == 1) send_raw(silent.back(), "CRV");
    if (i % 3 == 2) {
      silent.back() = member_connection(server.port());
      send_raw(silent.back(), std::string_view("\x20\0\0\0\x01half", 9));
    }
  }
  // A client that disconnects while its get() waits is forgotten, whether it closes or resets the connection.
  for (const bool reset : {false, true}) {
    const Fd client = member_connection(server.port());
    send_raw(client, store_protocol::encode(store_protocol::Request{store_protocol::Verb::get, "late",
                                                                    store_protocol::encode_number(60'000)}));
    const linger at_once{reset ? 1 : 0, 0};
    setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  }
  expect_alive(server.port());
  const auto store = connect_store("127.0.0.1", server.port(), kTimeout);
  store->set("late", "value");
  EXPECT_EQ(store->get("late", kTimeout), "value");
}

TEST(StoreServer, SlowReadersAreServedPieceByPiece) {
  const StoreServer server("127.0.0.1", 0);
  const auto store = connect_store("127.0.0.1", server.port(), kTimeout);
  const std::string value(store_protocol::kMaxValueBytes, 'v');
  store->set("large", value);
  std::vector<Fd> slow;
  const std::string ask = store_protocol::encode(
      store_protocol::Request{store_protocol::Verb::get, "large", store_protocol::encode_number(0)});
  for (int i = 0; i < 8; ++i) {
    slow.push_back(member_connection(server.port()));
    send_raw(slow.back(), ask);
  }
  expect_alive(server.port());
  for (const Fd& fd : slow) {
    std::string reply(4 + 1 + value.size(), '\0');
    ASSERT_EQ(receive_all(fd.get(), reply.data(), reply.size(), steady_clock::now() + kTimeout), Outcome::done);
    EXPECT_EQ(reply.substr(5), value);
  }
}

TEST(StoreServer, ItsDestructionIsALostStore) {
  auto server = std::make_unique<StoreServer>("127.0.0.1", 0);
  const auto store = connect_store("127.0.0.1", server->port(), kTimeout);
  const auto waiting = connect_store("127.0.0.1", server->port(), kTimeout);
  std::thread waiter(
      [&] { EXPECT_THAT([&] { waiting->get("never", kTimeout); }, ThrowsMessage<CommError>(HasSubstr("is lost"))); });
  store->set("before", "the end");
  server.reset();
  waiter.join();
  EXPECT_THAT([&] { store->has("before"); }, ThrowsMessage<CommError>(HasSubstr("is lost")));
  EXPECT_THAT([&] { store->set("again", ""); }, ThrowsMessage<CommError>(HasSubstr("is lost")));
}

TEST(StoreClient, DetectsAServerOfAnotherProgram) {
  int port = 0;
  std::thread other = impostor(port, "SSH-2.0-OpenSSH_9.2\r\n");
  EXPECT_THAT([&] { connect_store("127.0.0.1", port, kTimeout); },
              ThrowsMessage<CommError>(AllOf(HasSubstr(std::to_string(port)), HasSubstr("not a Caravan store"))));
  other.join();
  std::string newer = store_protocol::greeting();
  newer[4] = 9;
  other = impostor(port, newer);
  EXPECT_THAT([&] { connect_store("127.0.0.1", port, kTimeout); },
              ThrowsMessage<CommError>(
                  AllOf(HasSubstr("version 9"), HasSubstr("version " + std::to_string(store_protocol::kVersion)))));
  other.join();
  // Garbage in place of the answer to a name.
  other = impostor(port, store_protocol::greeting() + std::string(32, 'n') + std::string("\xff\xff\xff\xff", 4));
  EXPECT_THAT([&] { connect_store("127.0.0.1", port, kTimeout); },
              ThrowsMessage<CommError>(HasSubstr("malformed reply")));
  other.join();
}

}  // namespace
}  // namespace caravan::store_server_test
