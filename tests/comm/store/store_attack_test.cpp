#include <atomic>
#include <cerrno>
#include <gmock/gmock.h>
#include <mutex>
#include <random>
#include <sys/socket.h>
#include <thread>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/store/log.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/comm/store/secret/handshake.h"
#include "caravan/comm/store/secret/secret.h"
#include "caravan/comm/store/secret/server_handshake.h"
#include "caravan/comm/store/wire/protocol.h"
#include "tests/comm/store/raw_connections.h"
#include "tests/ranks/rank_case.h"

namespace caravan::store_attack_test {
namespace {

using namespace store_socket;
using namespace store_protocol;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Contains;
using testing::error_of;
using testing::greeted_connection;
using ::testing::HasSubstr;
using testing::impostor;
using testing::member_connection;
using ::testing::Not;
using testing::raw_connection;
using testing::read_to_end;
using testing::send_raw;

constexpr milliseconds kTimeout{20'000};
const JobKey kKey{"bright-comet", "the secret of the job bright-comet", 3};

/// A store under attack, while a job of three ranks uses it: in each round every rank adds to a counter and waits for
/// the others.
class StoreAttack : public ::testing::Test {
 protected:
  void SetUp() override {
    const LogLine log = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(line);
    };
    server_ = std::make_unique<StoreServer>(
        "127.0.0.1", 0,
        StoreServerOptions{
            .key = kKey, .log = log, .handshake_timeout = milliseconds(150), .stall_timeout = milliseconds(150)});
    for (int rank = 0; rank < kKey.world_size; ++rank) ranks_.emplace_back([this, rank] { be_rank(rank); });
  }

  void TearDown() override {
    const int64_t before = rounds_;
    while (rounds_ < before + 3 && !failed_)
      std::this_thread::sleep_for(milliseconds(1));  // the job still makes progress
    stop_ = true;
    for (std::thread& rank : ranks_) rank.join();
    server_.reset();  // its destructor logs, too
    EXPECT_FALSE(failed_) << "the job did not survive";
    const std::lock_guard lock(mutex_);
    for (const std::string& line : lines_) EXPECT_THAT(line, Not(HasSubstr(kKey.secret)));
  }

  int port() const { return server_->port(); }

  /// Waits until the log has a line with all of `parts`.
  void expect_line(const std::vector<std::string>& parts) {
    const auto fits = [&](const std::string& line) {
      return std::all_of(parts.begin(), parts.end(),
                         [&](const std::string& part) { return line.find(part) != std::string::npos; });
    };
    const auto deadline = std::chrono::steady_clock::now() + kTimeout;
    while (std::chrono::steady_clock::now() < deadline) {
      {
        const std::lock_guard lock(mutex_);
        if (std::any_of(lines_.begin(), lines_.end(), fits)) return;
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
    const std::lock_guard lock(mutex_);
    ADD_FAILURE() << "no line of the log has " << ::testing::PrintToString(parts) << " in "
                  << ::testing::PrintToString(lines_);
  }

  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  void be_rank(int rank) {
    try {
      const auto store = connect_store("127.0.0.1", port(), kTimeout, kKey, rank);
      for (int64_t round = 0;; ++round) {
        const std::string at = "round/" + std::to_string(round);
        if (rank == 0) store->set(at, stop_ ? "last" : "go");
        const std::string word = store->get(at, kTimeout);
        if (store->add(at + "/came", 1) == kKey.world_size) store->set(at + "/over", "");
        store->get(at + "/over", kTimeout);
        if (rank == 0) rounds_ = round;
        if (word == "last") return;
      }
    } catch (const std::exception& error) {
      failed_ = true;
      ADD_FAILURE() << "rank " << rank << ": " << error.what();
    }
  }

  std::unique_ptr<StoreServer> server_;
  std::vector<std::thread> ranks_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
  std::atomic<int64_t> rounds_{0};
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

TEST_F(StoreAttack, WrongMagic) {
  const Fd browser = raw_connection(port());
  send_raw(browser, "GET / HTTP/1.1\r\n\r\n");
  EXPECT_EQ(read_to_end(browser), greeting());
  expect_line({"store: refused 127.0.0.1:", "\"GET / HT\" is not a greeting"});
}

TEST_F(StoreAttack, WrongVersion) {
  const Fd old = raw_connection(port());
  std::string bytes = greeting();
  bytes[4] = 1;
  send_raw(old, bytes);
  EXPECT_EQ(read_to_end(old), greeting());
  expect_line({"its protocol has version 1, this server's version " + std::to_string(kVersion)});
}

TEST_F(StoreAttack, WrongSecret) {
  const JobKey other{kKey.id, "the secret of another job entirely", 3};
  const std::string error = error_of<UsageError>([&] { connect_store("127.0.0.1", port(), kTimeout, other, 1); });
  EXPECT_THAT(error,
              AllOf(HasSubstr("does not accept this rank's CARAVAN_SECRET"), HasSubstr("rank 1 of 3"),
                    HasSubstr("same CARAVAN_SECRET"), Not(HasSubstr(kKey.secret)), Not(HasSubstr(other.secret))));
  expect_line({"does not have the secret of job \"bright-comet\"", "it claims to be rank 1 of 3"});
}

TEST_F(StoreAttack, NoSecret) {
  const JobKey none{kKey.id, "", 3};
  const std::string error = error_of<UsageError>([&] { connect_store("127.0.0.1", port(), kTimeout, none, 2); });
  EXPECT_THAT(error, AllOf(HasSubstr("requires the secret of its job"), HasSubstr("CARAVAN_SECRET is not set here")));
  expect_line({"does not have the secret", "rank 2 of 3"});
}

TEST_F(StoreAttack, WrongWorldSize) {
  const JobKey larger{kKey.id, kKey.secret, 4};
  const std::string error = error_of<UsageError>([&] { connect_store("127.0.0.1", port(), kTimeout, larger, 3); });
  EXPECT_THAT(error,
              AllOf(HasSubstr("the job there has 3 ranks, this rank was started with 4"), HasSubstr("WORLD_SIZE")));
  expect_line({"rank 3 of 4", "this job has 3 ranks"});
}

TEST_F(StoreAttack, ASecondJobOnTheSamePort) {
  EXPECT_THAT(error_of<UsageError>([&] {
                StoreServer("127.0.0.1", port(), {.key = {"second", "", 2}});
              }),
              HasSubstr("in use by another program"));
  const JobKey same_secret{"dull-rock", kKey.secret, 3};
  EXPECT_THAT(error_of<UsageError>([&] { connect_store("127.0.0.1", port(), kTimeout, same_secret, 0); }),
              AllOf(HasSubstr("the store there belongs to job \"bright-comet\", not to \"dull-rock\""),
                    HasSubstr("its own MASTER_PORT")));
  expect_line({"rank 0 of 3, job \"dull-rock\"", "this is job \"bright-comet\""});
}

TEST_F(StoreAttack, SilenceAndHalfMessages) {
  const Fd silent = raw_connection(port());
  const Fd half_greeting = raw_connection(port());
  send_raw(half_greeting, "CRV");
  std::string nonce;
  const Fd nameless = greeted_connection(port(), nonce);
  const Fd half_name = greeted_connection(port(), nonce);
  send_raw(half_name, encode_hello(kKey, 1, nonce, std::string(32, 'n')).substr(0, 40));
  const Fd half_request = member_connection(port(), kKey, 1);
  send_raw(half_request, std::string_view("\x20\0\0\0\x01half", 9));
  for (const Fd* fd : {&silent, &half_greeting, &nameless, &half_name, &half_request}) EXPECT_EQ(read_to_end(*fd), "");
  expect_line({"no handshake within 0.1 s (0 bytes received)"});
  expect_line({"no handshake within 0.1 s (3 bytes received)"});
  expect_line({"no handshake within 0.1 s (40 bytes received)"});
  expect_line({"rank 1 stalled for 0.1 s within a message"});
}

TEST_F(StoreAttack, AnIdleRankStaysConnected) {
  const Fd idle = member_connection(port(), kKey, 1);
  std::this_thread::sleep_for(milliseconds(400));  // longer than every time-out of this server
  send_raw(idle, encode(Request{store_protocol::Verb::has, "key", {}}));
  std::string reply(6, '\0');
  EXPECT_EQ(receive_all(idle.get(), reply.data(), reply.size(), std::chrono::steady_clock::now() + kTimeout),
            Outcome::done);
  EXPECT_THAT(lines(), Not(Contains(HasSubstr("stalled"))));
}

TEST_F(StoreAttack, ARankThatWaitsForLongIsNotStalled) {
  const auto store = connect_store("127.0.0.1", port(), kTimeout, kKey, 1);
  const std::string error = error_of<CommError>([&] { store->get("never", milliseconds(400)); });
  EXPECT_THAT(error, HasSubstr("no rank set this key within 0.4 s"));
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_FALSE(store->has("never")) << "on the same connection";
  EXPECT_THAT(lines(), Not(Contains(HasSubstr("stalled"))));
}

TEST_F(StoreAttack, OversizedLengths) {
  std::string nonce;
  const Fd client = greeted_connection(port(), nonce);
  send_raw(client, "\xff\xff\xff\xff");
  EXPECT_EQ(read_to_end(client), "");
  expect_line({"it announced a handshake of 4294967295 bytes"});
  const Fd member = member_connection(port(), kKey, 2);
  send_raw(member, "\xff\xff\xff\x7f");
  EXPECT_EQ(read_to_end(member), "");
  expect_line({"rank 2 sent a request of 2147483647 bytes"});
}

TEST_F(StoreAttack, MalformedHandshakes) {
  std::string nonce;
  const Fd too_short = greeted_connection(port(), nonce);
  send_raw(too_short, std::string("\x08\0\0\0nonsense", 12));
  EXPECT_EQ(read_to_end(too_short), "");
  expect_line({"its handshake is malformed"});
  const Fd eager = raw_connection(port());
  send_raw(eager, greeting() + encode_hello(kKey, 0, std::string(32, '0'), std::string(32, 'n')));
  read_to_end(eager);
  expect_line({"sent data before the server's greeting"});
  // A job id cannot forge lines of the log.
  const JobKey forger{"x\n[store] all is well \x1b[2J\"", "another secret, of another job", 3};
  EXPECT_THROW(connect_store("127.0.0.1", port(), kTimeout, forger, 0), UsageError);
  expect_line({R"(job "x\x0a[store] all is well \x1b[2J\x22")"});
}

TEST_F(StoreAttack, ARecordedHandshakeOpensNothing) {
  std::string nonce;
  const Fd first = greeted_connection(port(), nonce);
  const std::string recorded = encode_hello(kKey, 1, nonce, std::string(32, 'n'));
  send_raw(first, recorded);
  const Fd second = greeted_connection(port(), nonce);
  send_raw(second, recorded);
  const std::string answer = read_to_end(second);
  ASSERT_GT(answer.size(), kLengthBytes);
  EXPECT_EQ(decode_answer(std::string_view(answer).substr(kLengthBytes))->verdict, Verdict::wrong_secret);
}

TEST_F(StoreAttack, RandomBytes) {
  std::mt19937 random(20'26);
  for (int round = 0; round < 200; ++round) {
    std::string garbage(1 + random() % 2000, '\0');
    for (char& byte : garbage) byte = static_cast<char>(random());
    std::string nonce;
    const int depth = round % 4;
    const Fd fd = depth == 0   ? raw_connection(port())
                  : depth == 3 ? member_connection(port(), kKey, 2)
                               : greeted_connection(port(), nonce);
    if (depth == 2) {  // a right length, so that the fields are read
      garbage.resize(4 + 72 + random() % 128);
      garbage.replace(0, 4, std::string({static_cast<char>(garbage.size() - 4), '\0', '\0', '\0'}));
    }
    if (depth == 3) garbage.replace(0, std::min<size_t>(4, garbage.size()), std::string("\x10\0\0\0", 4));
    send_raw(fd, garbage);
    shutdown(fd.get(), SHUT_WR);
    read_to_end(fd);
  }
  expect_line({"more connections"});  // omitted lines are counted
}

/// More connections than the server keeps without a handshake. Ranks that connect after them are accepted.
TEST_F(StoreAttack, UnauthenticatedConnectionsDoNotKeepRanksOut) {
  std::vector<Fd> connections;
  for (int i = 0; i < 400; ++i) {
    connections.push_back(raw_connection(port()));
    if (i % 50 == 0) connect_store("127.0.0.1", port(), kTimeout, kKey, 1)->set("came", std::to_string(i));
  }
  const auto last = connect_store("127.0.0.1", port(), kTimeout, kKey, 1);
  last->set("came", "last");
  EXPECT_EQ(last->get("came", kTimeout), "last");
  for (const Fd& connection : connections) read_to_end(connection);  // the server has closed it
}

/// Without time-outs: only the limit closes connections, and it closes the oldest.
TEST(StoreLimit, TheOldestConnectionWithoutAHandshakeMakesRoom) {
  std::mutex mutex;
  std::vector<std::string> lines;
  const LogLine log = [&](const std::string& line) {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
  };
  StoreServer server(
      "127.0.0.1", 0,
      {.key = kKey, .log = log, .handshake_timeout = std::chrono::hours(1), .stall_timeout = std::chrono::hours(1)});
  std::vector<Fd> connections;
  for (int i = 0; i < 400; ++i) connections.push_back(raw_connection(server.port()));
  // The server accepts in order: when it answers this one, it has accepted all of them.
  connect_store("127.0.0.1", server.port(), kTimeout, kKey, 1)->set("came", "last");
  const auto is_open = [](const Fd& fd) {
    char byte = 0;
    ssize_t got = 0;
    do {
      got = ::recv(fd.get(), &byte, 1, MSG_DONTWAIT);
    } while (got > 0);
    return got < 0 && errno == EAGAIN;
  };
  EXPECT_FALSE(is_open(connections.front()));
  EXPECT_TRUE(is_open(connections.back()));
  const std::lock_guard lock(mutex);
  EXPECT_THAT(lines, Contains(HasSubstr("too many connections without a handshake")));
}

TEST(StoreClient, AStoreThatDoesNotKnowTheSecretIsRefused) {
  int port = 0;
  std::string answer = encode_answer({kKey.id, "a guess that is wrong, of course", 3}, store_protocol::Verdict::welcome,
                                     std::string(32, 'n'), std::string(32, 'n'));
  std::thread other = impostor(port, greeting() + std::string(32, 'n') + answer);
  EXPECT_THAT(error_of<UsageError>([&] { connect_store("127.0.0.1", port, kTimeout, kKey, 0); }),
              HasSubstr("the server there does not know the secret of this job"));
  other.join();
}

TEST(StoreLog, CountsOmittedLines) {
  std::vector<std::string> lines;
  {
    StoreLog log([&](const std::string& line) { lines.push_back(line); });
    for (int i = 0; i < 35; ++i) log.refused("host:" + std::to_string(i), "reason");
  }
  const size_t most = StoreLog::kMaxLinesPerSecond;
  ASSERT_GE(lines.size(), most + 1);  // more when the second happens to change in between
  EXPECT_EQ(lines[0], "store: refused host:0: reason");
  if (lines.size() == most + 1) {
    EXPECT_EQ(lines.back(), "store: refused 25 more connections");
  }
}

}  // namespace
}  // namespace caravan::store_attack_test
