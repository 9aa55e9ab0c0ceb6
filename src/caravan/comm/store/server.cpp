#include <algorithm>
#include <cerrno>
#include <map>
#include <poll.h>
#include <string>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/store/counter.h"
#include "caravan/comm/store/log.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/comm/store/wire/connection.h"
#include "caravan/comm/store/wire/listen.h"
#include "caravan/comm/store/wire/protocol.h"
#include "caravan/comm/store/wire/socket.h"

namespace caravan {
namespace {

using Connection = StoreConnection;
using namespace store_socket;
using namespace store_protocol;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kAcceptPause{100};    // after descriptors ran out
constexpr int kAcceptsPerTurn = 64;          // a flood of connects must not starve the clients
constexpr size_t kMaxUnauthenticated = 256;  // connections whose handshake is not complete

class Loop {
 public:
  Loop(Fd listener, int wake, StoreServerOptions options)
      : listener_(std::move(listener)), wake_(wake), options_(std::move(options)), log_(options_.log) {}

  void run() {
    while (true) {
      build_poll_set();
      if (poll(entries_.data(), entries_.size(), poll_timeout()) < 0 && errno != EINTR) return;
      if (entries_[0].revents != 0) return;
      // Clients accepted below have no entry yet; they come after those that have one.
      for (size_t i = 0; i + 2 < entries_.size(); ++i) serve(connections_[i], entries_[i + 2].revents);
      for (Connection& connection : connections_) expire(connection);
      std::erase_if(connections_, [](const Connection& c) { return !c.fd; });
      if (entries_[1].revents != 0) accept_some();
      if (log_.due() <= steady_clock::now()) log_.log_omitted();
    }
  }

 private:
  void build_poll_set();
  int poll_timeout() const;
  void accept_some();
  void make_room();
  void serve(Connection& connection, short events);
  void expire(Connection& connection);
  void process(Connection& connection);
  bool advance_handshake(Connection& connection);
  bool answer_request(Connection& connection);
  void answer(Connection& connection, const Request& request);
  void answer_waiters(const std::string& key);
  void note_disconnect(int rank);
  void refuse(Connection& connection, const std::string& reason);

  Fd listener_;
  int wake_;  ///< readable when the server is to end
  StoreServerOptions options_;
  StoreLog log_;
  std::vector<Connection> connections_;
  std::vector<pollfd> entries_;
  std::map<std::string, std::string, std::less<>> values_;
  Deadline accept_again_{};
};

void Loop::build_poll_set() {
  entries_.clear();
  entries_.push_back({wake_, POLLIN, 0});
  const bool accepts = steady_clock::now() >= accept_again_;
  entries_.push_back({accepts ? listener_.get() : -1, POLLIN, 0});
  for (const Connection& c : connections_) {
    // POLLRDHUP reports a client that disconnects while it waits and is not read from.
    const short events = !c.out.empty() ? POLLOUT : c.waiting ? POLLRDHUP : POLLIN;
    entries_.push_back({c.fd.get(), events, 0});
  }
}

int Loop::poll_timeout() const {
  const Deadline now = steady_clock::now();
  Deadline first = log_.due();
  for (const Connection& c : connections_) first = std::min(first, c.deadline);
  if (accept_again_ > now) first = std::min(first, accept_again_);
  if (first == Deadline::max()) return -1;
  const auto left = std::chrono::ceil<milliseconds>(first - now).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

void Loop::accept_some() {
  for (int accepted = 0; accepted < kAcceptsPerTurn; ++accepted) {
    std::string peer;
    Fd fd = accept_one(listener_.get(), peer);
    if (!fd) {
      const bool exhausted = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (exhausted) accept_again_ = steady_clock::now() + kAcceptPause;
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return;
    }
    make_room();
    connections_.emplace_back(std::move(fd), std::move(peer), options_.key,
                              steady_clock::now() + options_.handshake_timeout);
  }
}

/// Unauthenticated connections cannot keep ranks out: the oldest one is closed.
void Loop::make_room() {
  const auto is_unauthenticated = [](const Connection& c) { return c.fd && !c.accepted; };
  if (static_cast<size_t>(std::count_if(connections_.begin(), connections_.end(), is_unauthenticated)) <
      kMaxUnauthenticated)
    return;
  refuse(*std::find_if(connections_.begin(), connections_.end(), is_unauthenticated),
         "too many connections without a handshake");
}

void Loop::serve(Connection& connection, short events) {
  if (events == 0 || !connection.fd) return;
  if (!connection.out.empty()) {
    connection.flush();
  } else if (connection.waiting || !connection.read_more()) {
    if (!connection.accepted) return refuse(connection, "it disconnected before the handshake");
    connection.drop();
    return note_disconnect(connection.handshake.rank());
  }
  process(connection);
  connection.limit(options_.stall_timeout);
}

void Loop::expire(Connection& connection) {
  if (!connection.fd || connection.deadline > steady_clock::now()) return;
  if (connection.waiting) {
    connection.waiting = false;
    connection.deadline = Deadline::max();
    connection.out = encode(Reply{Status::timed_out, {}});
    connection.flush();
    process(connection);
    return connection.limit(options_.stall_timeout);
  }
  if (connection.closing) return connection.drop();
  const auto seconds = [](milliseconds time) { return static_cast<double>(time.count()) / 1e3; };
  refuse(connection, connection.accepted ? fmt::format("rank {} stalled for {:.1f} s within a message",
                                                       connection.handshake.rank(), seconds(options_.stall_timeout))
                                         : fmt::format("no handshake within {:.1f} s ({} bytes received)",
                                                       seconds(options_.handshake_timeout), connection.in.size()));
}

/// A rank has one connection for each thread that uses the store at the same time. It is gone when the last one closes.
void Loop::note_disconnect(int rank) {
  const bool is_connected = std::ranges::any_of(
      connections_, [&](const Connection& c) { return c.fd && c.accepted && c.handshake.rank() == rank; });
  if (rank >= 0 && !is_connected) values_[disconnected_key(rank)] = "";
}

void Loop::refuse(Connection& connection, const std::string& reason) {
  log_.refused(connection.peer, reason);
  connection.drop();
}

void Loop::process(Connection& connection) {
  while (connection.fd && connection.out.empty() && !connection.waiting) {
    if (connection.closing) return connection.drop();
    if (!(connection.accepted ? answer_request(connection) : advance_handshake(connection))) return;
  }
}

/// True if a message was consumed.
bool Loop::advance_handshake(Connection& connection) {
  const ServerHandshake::State state = connection.handshake.advance(connection.in, connection.out);
  const bool answered = !connection.out.empty();
  connection.flush();
  if (state == ServerHandshake::State::rejected) {
    log_.refused(connection.peer, connection.handshake.reason());
    connection.closing = true;
    return true;
  }
  connection.accepted = state == ServerHandshake::State::accepted;
  if (connection.accepted) {
    connection.deadline = Deadline::max();
    values_.erase(disconnected_key(connection.handshake.rank()));
  }
  return answered;
}

bool Loop::answer_request(Connection& connection) {
  if (connection.in.size() < kLengthBytes) return false;
  const auto refuse_rank = [&](const std::string& what) {
    refuse(connection, fmt::format("rank {} sent {}", connection.handshake.rank(), what));
    return false;
  };
  const size_t bytes = body_bytes(connection.in);
  if (bytes > kMaxFrameBytes) return refuse_rank(fmt::format("a request of {} bytes", bytes));
  if (connection.in.size() < kLengthBytes + bytes) return false;
  const std::string frame = std::exchange(connection.in, {});
  const auto request = decode_request(std::string_view(frame).substr(kLengthBytes));
  if (!request) return refuse_rank("a malformed request");
  if (frame.size() != kLengthBytes + bytes) return refuse_rank("a request before it had read the last reply");
  answer(connection, *request);
  connection.flush();
  return true;
}

void Loop::answer(Connection& connection, const Request& request) {
  const std::string key(request.key);
  const auto found = values_.find(key);
  switch (request.verb) {
    case Verb::set:
      values_[key] = std::string(request.value);
      answer_waiters(key);
      connection.out = encode(Reply{});
      return;
    case Verb::has:
      connection.out =
          encode(Reply{Status::ok, found != values_.end() ? std::string_view("\1", 1) : std::string_view("\0", 1)});
      return;
    case Verb::add: {
      std::string& value = values_[key];
      const auto sum = add_to_counter(value, decode_number(request.value));
      if (sum) answer_waiters(key);
      connection.out =
          sum ? encode(Reply{Status::ok, encode_number(*sum)}) : encode(Reply{Status::not_a_counter, value});
      return;
    }
    case Verb::remove:
      if (found != values_.end()) values_.erase(found);
      connection.out = encode(Reply{});
      return;
    case Verb::get:
      if (found != values_.end()) {
        connection.out = encode(Reply{Status::ok, found->second});
        return;
      }
      connection.waiting = true;
      connection.key = key;
      // The sum with a client's number must not overflow.
      connection.deadline =
          steady_clock::now() + milliseconds(std::clamp<int64_t>(decode_number(request.value), 0, 1LL << 40));
      return;
  }
}

void Loop::answer_waiters(const std::string& key) {
  for (Connection& c : connections_) {
    if (!c.fd || !c.waiting || c.key != key) continue;
    c.waiting = false;
    c.out = encode(Reply{Status::ok, values_[key]});
    c.deadline = Deadline::max();
    c.flush();
    c.limit(options_.stall_timeout);
  }
}

}  // namespace

struct StoreServer::Impl {
  int port = 0;
  Fd wake;
  std::thread thread;
};

StoreServer::StoreServer(const std::string& address, int port, StoreServerOptions options)
    : impl_(std::make_unique<Impl>()) {
  Fd listener = listen_on(address, port);
  impl_->port = port_of(listener.get());
  impl_->wake = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!impl_->wake) {  // without it the thread could not be told to end
    throw ResourceError({.op = "store",
                         .subject = fmt::format("{}:{}", address, impl_->port),
                         .fact = fmt::format("cannot open an eventfd: {}", system_error(errno)),
                         .action = "raise the limit of open files (ulimit -n)"});
  }
  impl_->thread =
      std::thread([listener = std::move(listener), wake = impl_->wake.get(), options = std::move(options)]() mutable {
        Loop(std::move(listener), wake, std::move(options)).run();
      });
}

StoreServer::~StoreServer() {
  const uint64_t one = 1;
  while (write(impl_->wake.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  impl_->thread.join();
}

int StoreServer::port() const noexcept { return impl_->port; }

}  // namespace caravan
