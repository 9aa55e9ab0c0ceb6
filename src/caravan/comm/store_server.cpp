#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <map>
#include <netinet/in.h>
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
#include "caravan/comm/rendezvous.h"
#include "caravan/comm/store_counter.h"
#include "caravan/comm/store_protocol.h"
#include "caravan/comm/store_socket.h"

namespace caravan {
namespace {

using namespace store_socket;
using namespace store_protocol;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kGreetingTimeout{10'000};  // a connection that says nothing does not hold a descriptor for ever
constexpr milliseconds kAcceptPause{100};         // when descriptors run out

/// One client. It has at most one request in work: one that sends the next before it has read the answer is dropped,
/// and one that floods or does not read costs one frame of memory.
struct Connection {
  Fd fd;
  std::string in;
  std::string out;
  bool greeted = false;
  bool waiting = false;  ///< its get() waits for `key`
  bool closing = false;  ///< to be closed when `out` is sent
  std::string key;
  Deadline deadline;  ///< of the greeting, or of the waiting get()
};

class Loop {
 public:
  Loop(Fd listener, Fd wake) : listener_(std::move(listener)), wake_(std::move(wake)) {}

  void run() {
    while (true) {
      build_poll_set();
      if (poll(entries_.data(), entries_.size(), poll_timeout()) < 0 && errno != EINTR) return;
      if (entries_[0].revents != 0) return;
      // Clients accepted below have no entry in this round: they stand behind those that have one.
      for (size_t i = 0; i + 2 < entries_.size(); ++i) serve(connections_[i], entries_[i + 2].revents);
      expire();
      std::erase_if(connections_, [](const Connection& c) { return !c.fd; });
      if (entries_[1].revents != 0) accept_all();
    }
  }

 private:
  void build_poll_set();
  int poll_timeout() const;
  void accept_all();
  void serve(Connection& connection, short events);
  void expire();
  bool read_more(Connection& connection);
  void work_off(Connection& connection);
  bool take_greeting(Connection& connection);
  bool take_request(Connection& connection);
  void answer(Connection& connection, const Request& request);
  void answer_waiters(const std::string& key);
  static void flush(Connection& connection);
  static void drop(Connection& connection) { connection.fd = Fd(); }
  static bool has_deadline(const Connection& c) { return c.fd && (c.waiting || !c.greeted); }

  Fd listener_;
  Fd wake_;
  std::vector<Connection> connections_;
  std::vector<pollfd> entries_;
  std::map<std::string, std::string, std::less<>> values_;
  Deadline accept_again_{};
};

void Loop::build_poll_set() {
  entries_.clear();
  entries_.push_back({wake_.get(), POLLIN, 0});
  const bool accepts = steady_clock::now() >= accept_again_;
  entries_.push_back({accepts ? listener_.get() : -1, POLLIN, 0});
  for (const Connection& c : connections_) {
    // POLLRDHUP tells of a client that left while it waits and is not read from.
    const short events = !c.out.empty() ? POLLOUT : c.waiting ? POLLRDHUP : POLLIN;
    entries_.push_back({c.fd.get(), events, 0});
  }
}

int Loop::poll_timeout() const {
  const Deadline now = steady_clock::now();
  Deadline first = Deadline::max();
  for (const Connection& c : connections_) {
    if (has_deadline(c)) first = std::min(first, c.deadline);
  }
  if (accept_again_ > now) first = std::min(first, accept_again_);
  if (first == Deadline::max()) return -1;
  const auto left = std::chrono::ceil<milliseconds>(first - now).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

void Loop::accept_all() {
  for (;;) {
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      const bool exhausted = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (exhausted) accept_again_ = steady_clock::now() + kAcceptPause;
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return;
    }
    tune(fd.get());
    Connection connection;
    connection.fd = std::move(fd);
    connection.deadline = steady_clock::now() + kGreetingTimeout;
    connections_.push_back(std::move(connection));
  }
}

void Loop::serve(Connection& connection, short events) {
  if (events == 0 || !connection.fd) return;
  if (!connection.out.empty()) return flush(connection), work_off(connection);
  if (connection.waiting || !read_more(connection)) return drop(connection);
  work_off(connection);
}

void Loop::expire() {
  const Deadline now = steady_clock::now();
  for (Connection& c : connections_) {
    if (!has_deadline(c) || c.deadline > now) continue;
    if (!c.greeted) {
      drop(c);
      continue;
    }
    c.waiting = false;
    c.out = encode(Reply{Status::timed_out, {}});
    flush(c);
    work_off(c);
  }
}

/// False if the client is gone.
bool Loop::read_more(Connection& connection) {
  char bytes[16384];
  const ssize_t got = recv(connection.fd.get(), bytes, sizeof(bytes), 0);
  if (got > 0) connection.in.append(bytes, static_cast<size_t>(got));
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

void Loop::work_off(Connection& connection) {
  while (connection.fd && connection.out.empty() && !connection.waiting) {
    if (connection.closing) return drop(connection);
    if (!(connection.greeted ? take_request(connection) : take_greeting(connection))) return;
  }
}

/// True if a greeting was taken; a stranger gets ours, so that it sees whom it met, and is let go.
bool Loop::take_greeting(Connection& connection) {
  if (connection.in.size() < kGreetingBytes) return false;
  const auto version = greeting_version(std::string_view(connection.in).substr(0, kGreetingBytes));
  connection.in.erase(0, kGreetingBytes);
  connection.greeted = true;
  connection.closing = version != kVersion || !connection.in.empty();
  connection.out = greeting();
  flush(connection);
  return true;
}

bool Loop::take_request(Connection& connection) {
  if (connection.in.size() < kLengthBytes) return false;
  const size_t bytes = body_bytes(connection.in);
  if (bytes > kMaxFrameBytes) return drop(connection), false;
  if (connection.in.size() < kLengthBytes + bytes) return false;
  const std::string frame = std::exchange(connection.in, {});
  const auto request = decode_request(std::string_view(frame).substr(kLengthBytes));
  if (!request || frame.size() != kLengthBytes + bytes) return drop(connection), false;
  answer(connection, *request);
  flush(connection);
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
    case Verb::get:
      if (found != values_.end()) {
        connection.out = encode(Reply{Status::ok, found->second});
        return;
      }
      connection.waiting = true;
      connection.key = key;
      // An absurd wait must not overflow the clock.
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
    flush(c);
  }
}

void Loop::flush(Connection& connection) {
  while (!connection.out.empty()) {
    const ssize_t sent = send(connection.fd.get(), connection.out.data(), connection.out.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      connection.out.erase(0, static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      connection.out.clear();
      return drop(connection);
    }
  }
}

Fd listen_on(const std::string& address, int port) {
  const std::string subject = fmt::format("{}:{}", address, port);
  const auto refuse = [&](std::string fact, std::string action) {
    return UsageError(
        {.op = "store", .subject = subject, .fact = std::move(fact), .where = "", .action = std::move(action)});
  };
  if (port < 0 || port > 65535) throw refuse(fmt::format("{} is not a port", port), "choose one from 1024 to 65535");
  const Addresses addresses(address, port, true);
  if (addresses.first() == nullptr) throw refuse(addresses.error(), "use a name or an address of this host");
  const addrinfo& where = *addresses.first();
  Fd fd(socket(where.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (fd && bind(fd.get(), where.ai_addr, where.ai_addrlen) == 0 && listen(fd.get(), 1024) == 0) return fd;
  if (errno == EADDRINUSE) {
    throw refuse(
        fmt::format("port {} is in use by another program", port),
        fmt::format("end that program (ss -ltnp 'sport = :{}' shows it), or set MASTER_PORT to another port", port));
  }
  if (errno == EADDRNOTAVAIL) {
    throw refuse("this is not an address of this host", "set MASTER_ADDR to the host of rank 0");
  }
  throw refuse(fmt::format("cannot listen: {}", system_error(errno)), "choose another port");
}

}  // namespace

struct StoreServer::Impl {
  int port = 0;
  Fd wake;
  std::thread thread;
};

StoreServer::StoreServer(const std::string& address, int port) : impl_(std::make_unique<Impl>()) {
  Fd listener = listen_on(address, port);
  sockaddr_storage bound{};
  socklen_t bytes = sizeof(bound);
  getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &bytes);
  impl_->port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                                  : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  impl_->wake = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  Fd wake(fcntl(impl_->wake.get(), F_DUPFD_CLOEXEC, 0));
  impl_->thread = std::thread([listener = std::move(listener), wake = std::move(wake)]() mutable {
    Loop(std::move(listener), std::move(wake)).run();
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
