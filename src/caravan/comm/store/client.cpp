#include <algorithm>
#include <mutex>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/comm/store/secret/handshake.h"
#include "caravan/comm/store/secret/secret.h"
#include "caravan/comm/store/wire/errors.h"
#include "caravan/comm/store/wire/protocol.h"
#include "caravan/comm/store/wire/socket.h"

namespace caravan {
namespace {

using namespace store_socket;
using namespace store_protocol;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kReplyTimeout{30'000};              // in addition to what the request itself waits
constexpr milliseconds kMaxRequestWait{int64_t{1} << 40};  // now + this must not overflow

/// Each thread that makes a request at the same time uses its own connection, so a waiting get() blocks no other
/// thread.
class StoreClient final : public Store {
 public:
  StoreClient(std::string address, int port, JobKey key, int rank)
      : address_(std::move(address)), port_(port), key_(std::move(key)), rank_(rank) {}

  void connect(milliseconds timeout) { idle_.push_back(open(steady_clock::now() + timeout, timeout, true)); }

  void set(std::string_view key, std::string_view value) override {
    check_size(key, value);
    ask({Verb::set, key, value});
  }

  std::string get(std::string_view key, milliseconds timeout) override {
    check_size(key, {});
    const milliseconds wait = std::clamp(timeout, milliseconds(0), kMaxRequestWait);
    return ask({Verb::get, key, encode_number(wait.count())}, wait);
  }

  bool has(std::string_view key) override {
    check_size(key, {});
    return ask({Verb::has, key, {}}) == std::string_view("\1", 1);
  }

  int64_t add(std::string_view key, int64_t amount) override {
    check_size(key, {});
    const std::string sum = ask({Verb::add, key, encode_number(amount)});
    if (sum.size() != sizeof(int64_t)) throw lost("sent a malformed reply");
    return decode_number(sum);
  }

  void remove(std::string_view key) override {
    check_size(key, {});
    ask({Verb::remove, key, {}});
  }

  bool has_disconnected(int rank) override { return has(disconnected_key(rank)); }

 private:
  std::string ask(const Request& request, milliseconds wait = milliseconds(0));
  Fd take(Deadline deadline);
  Fd open(Deadline deadline, milliseconds timeout, bool retries) const;
  Outcome greet(int fd, Deadline deadline) const;
  Outcome authenticate(int fd, Deadline deadline) const;
  void check_size(std::string_view key, std::string_view value) const;

  std::string where() const { return fmt::format("store at {}:{}", address_, port_); }
  CommError lost(std::string_view how) const {
    return CommError({.op = "store",
                      .subject = "",
                      .fact = fmt::format("the store at {}:{} {}", address_, port_, how),
                      .action = "find out why the process that serves it ended: the launcher, or rank 0"});
  }

  std::string address_;
  int port_;
  JobKey key_;
  int rank_;
  std::mutex mutex_;
  std::vector<Fd> idle_;
};

void StoreClient::check_size(std::string_view key, std::string_view value) const {
  if (key.size() <= kMaxKeyBytes && value.size() <= kMaxValueBytes) return;
  throw UsageError({.op = "store",
                    .subject = std::string(key.substr(0, 80)),
                    .fact = fmt::format("a key of {} and a value of {} bytes; the store takes {} and {}", key.size(),
                                        value.size(), kMaxKeyBytes, kMaxValueBytes),
                    .where = where(),
                    .action = "send large data through a communicator"});
}

Fd StoreClient::take(Deadline deadline) {
  if (std::unique_lock lock(mutex_); !idle_.empty()) {
    Fd fd = std::move(idle_.back());
    idle_.pop_back();
    return fd;
  }
  return open(deadline, kReplyTimeout, false);
}

std::string StoreClient::ask(const Request& request, milliseconds wait) {
  const Deadline deadline = steady_clock::now() + wait + kReplyTimeout;
  Fd fd = take(deadline);
  std::string body(kLengthBytes, '\0');
  Outcome outcome = send_all(fd.get(), encode(request), deadline);
  if (outcome == Outcome::done) outcome = receive_all(fd.get(), body.data(), body.size(), deadline);
  if (outcome == Outcome::done) {
    const size_t bytes = body_bytes(body);
    if (bytes > kMaxFrameBytes) throw lost("sent a malformed reply");
    body.resize(bytes);
    outcome = receive_all(fd.get(), body.data(), body.size(), deadline);
  }
  if (outcome == Outcome::closed) throw lost("is lost: it closed the connection");
  if (outcome == Outcome::timed_out) throw lost("does not reply");
  const auto reply = decode_reply(body);
  if (!reply) throw lost("sent a malformed reply");
  {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(fd));
  }
  if (reply->status == Status::ok) return std::string(reply->value);
  if (reply->status == Status::timed_out) throw key_not_set(request.key, wait, where());
  throw not_a_counter(request.key, reply->value, decode_number(request.value), where());
}

Outcome StoreClient::greet(int fd, Deadline deadline) const {
  std::string answer(kGreetingBytes, '\0');
  Outcome outcome = send_all(fd, greeting(), deadline);
  if (outcome == Outcome::done) outcome = receive_all(fd, answer.data(), answer.size(), deadline);
  if (outcome != Outcome::done) return outcome;
  const auto version = greeting_version(answer);
  if (!version) {
    throw CommError({.op = "store",
                     .subject = fmt::format("{}:{}", address_, port_),
                     .fact = "the server there is not a Caravan store",
                     .action = "check MASTER_ADDR and MASTER_PORT"});
  }
  if (*version != kVersion) {
    throw CommError(
        {.op = "store",
         .subject = fmt::format("{}:{}", address_, port_),
         .fact = fmt::format("the store there has protocol version {}, this process version {}", *version, kVersion),
         .action = "run the same build of Caravan on every rank"});
  }
  return authenticate(fd, deadline);
}

/// Proves that this rank belongs to the job, and verifies that the store does.
Outcome StoreClient::authenticate(int fd, Deadline deadline) const {
  std::string nonce(store_secret::kNonceBytes, '\0');
  const std::string own_nonce = store_secret::random_bytes(store_secret::kNonceBytes);
  std::string body(kLengthBytes, '\0');
  Outcome outcome = receive_all(fd, nonce.data(), nonce.size(), deadline);
  if (outcome == Outcome::done) outcome = send_all(fd, encode_hello(key_, rank_, nonce, own_nonce), deadline);
  if (outcome == Outcome::done) outcome = receive_all(fd, body.data(), body.size(), deadline);
  if (outcome != Outcome::done) return outcome;
  const size_t bytes = body_bytes(body);
  if (bytes > kMaxHandshakeBytes) throw lost("sent a malformed reply");
  body.resize(bytes);
  outcome = receive_all(fd, body.data(), body.size(), deadline);
  if (outcome != Outcome::done) return outcome;
  const auto answer = decode_answer(body);
  if (!answer) throw lost("sent a malformed reply");
  const bool genuine = is_genuine(key_, nonce, own_nonce, *answer);
  if (genuine && answer->verdict == Verdict::welcome) return outcome;
  throw rejected_handshake(key_, rank_, fmt::format("{}:{}", address_, port_), *answer, genuine);
}

Fd StoreClient::open(Deadline deadline, milliseconds timeout, bool retries) const {
  std::string error;
  for (milliseconds pause{10};; pause = std::min(pause * 2, milliseconds(250))) {
    Fd fd = try_connect(address_, port_, deadline, error);
    if (fd) {
      const Outcome outcome = greet(fd.get(), deadline);
      if (outcome == Outcome::done) return fd;
      error = outcome == Outcome::closed ? "connection closed during the handshake" : "no greeting";
      // The server is alive but closed this connection to make room.
      if (!retries && outcome == Outcome::closed && steady_clock::now() + pause < deadline) {
        std::this_thread::sleep_for(pause);
        continue;
      }
    }
    if (!retries) throw lost(fmt::format("is lost: {}", error));
    if (steady_clock::now() + pause >= deadline) {
      throw CommError({.op = "store",
                       .subject = fmt::format("{}:{}", address_, port_),
                       .fact = fmt::format("no store answered within {:.1f} s: {}", timeout.count() / 1e3, error),
                       .action = "start the launcher or rank 0, and check MASTER_ADDR, MASTER_PORT and firewalls"});
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace

std::shared_ptr<Store> connect_store(const std::string& address, int port, milliseconds timeout, const JobKey& key,
                                     int rank) {
  auto client = std::make_shared<StoreClient>(address, port, key, rank);
  client->connect(timeout);
  return client;
}

}  // namespace caravan
