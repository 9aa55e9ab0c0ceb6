/// A rank for the tests. Each argument is a script, `RANK=step,step..` or `*=step,step..`; the first that matches is
/// run.
///   sleep:MS
///   exit:CODE
///   kill:SIGNAL   sends itself a signal
///   say:TEXT      to stdout
///   warn:TEXT     to stderr
///   error:TEXT    as the error that ends the rank
///   read          echoes one line of stdin
///   env           prints what the launcher has set
///   serve         listens on MASTER_PORT, as the store of torch.distributed does on rank 0
///   meet          waits for all ranks, through the store
///   hang          forever
///   deaf          ignores signals
///   count         counts requests to stop until none comes for 300 ms, and prints their number
///   stop:MS       waits for a request to stop, takes MS to save, ends with 130
///   spawn:N       starts N children that sleep forever
///   orphan:MS     starts a process without a parent, in its own session, that ends after MS; prints its id
///   stranger      tries to join the job without its secret, and prints the error
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <netinet/in.h>
#include <sstream>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "caravan/base/error.h"
#include "caravan/base/system/error_report.h"
#include "caravan/base/system/stop_signal.h"
#include "caravan/comm/store/rendezvous.h"

namespace {

using namespace caravan;
using std::chrono::milliseconds;

volatile std::sig_atomic_t requests = 0;

void print_environment() {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                           "TORCHELASTIC_USE_AGENT_STORE", "INHERITED"}) {
    const char* value = std::getenv(name);
    std::printf("%s=%s\n", name, value == nullptr ? "(unset)" : value);
  }
}

void serve() {
  const int fd = socket(AF_INET6, SOCK_STREAM, 0);
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(static_cast<uint16_t>(std::atoi(std::getenv("MASTER_PORT"))));
  const bool serves = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 && listen(fd, 8) == 0;
  std::printf("%s\n", serves ? "serves MASTER_PORT" : std::strerror(errno));
}

/// Exits with 51 if the condition does not hold within about 10 seconds.
template <class Condition>
void wait_until(const Condition& condition) {
  for (int waited = 0; !condition(); ++waited) {
    if (waited == 10'000) std::exit(51);
    std::this_thread::sleep_for(milliseconds(1));
  }
}

void meet() {
  const RankInfo info = RankInfo::from_environment();
  if (!info.store_is_served) std::exit(50);
  const auto store = connect_store(info.master_addr, info.master_port, milliseconds(10'000), info.key, info.rank);
  store->set("rank/" + std::to_string(info.rank), std::to_string(getpid()));
  for (int rank = 0; rank < info.world_size; ++rank) store->get("rank/" + std::to_string(rank), milliseconds(10'000));
  store->add("met", 1);
  if (info.rank > 0) return;
  wait_until([&] { return store->add("met", 0) >= info.world_size; });
  std::printf("all %d met\n", info.world_size);
}

/// Waits until the launcher has reaped that rank; all have met.
void wait_for_end_of(int rank) {
  const RankInfo info = RankInfo::from_environment();
  const auto store = connect_store(info.master_addr, info.master_port, milliseconds(10'000), info.key, info.rank);
  const pid_t other = std::stoi(store->get("rank/" + std::to_string(rank), milliseconds(10'000)));
  wait_until([&] { return kill(other, 0) != 0; });
}

void be_stranger() {
  const RankInfo info = RankInfo::from_environment();
  try {
    connect_store(info.master_addr, info.master_port, milliseconds(10'000), {info.key.id, "", info.world_size},
                  info.rank);
  } catch (const UsageError& error) {
    std::printf("%s\n", error.what());
  }
}

void count_requests() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) std::signal(number, [](int) { requests = requests + 1; });
  std::printf("counting\n");
  std::fflush(stdout);
  while (requests == 0) usleep(1000);
  for (int before = 0; before != requests;) {
    before = requests;
    for (int i = 0; i < 300; ++i) usleep(1000);
  }
  std::printf("%d requests\n", static_cast<int>(requests));
}

void spawn(int children) {
  for (int i = 0; i < children; ++i) {
    if (fork() != 0) continue;
    for (;;) pause();
  }
}

void leave_orphan(int milliseconds) {
  std::fflush(stdout);
  const pid_t parent = fork();
  if (parent == 0) {
    setsid();
    const pid_t orphan = fork();
    if (orphan == 0) {
      for (int i = 0; i < milliseconds; ++i) usleep(1000);
    } else {
      std::printf("orphan %d\n", orphan);
      std::fflush(stdout);
    }
    _exit(0);
  }
  waitpid(parent, nullptr, 0);
}

void run_step(const std::string& step) {
  const std::string verb = step.substr(0, step.find(':'));
  const std::string argument = verb == step ? "" : step.substr(verb.size() + 1);
  const int number = std::atoi(argument.c_str());
  if (verb == "sleep") std::this_thread::sleep_for(milliseconds(number));
  if (verb == "exit") std::exit(number);
  if (verb == "kill") {
    std::signal(number, SIG_DFL);  // a sanitizer may have taken it
    kill(getpid(), number);
  }
  if (verb == "say") std::printf("%s\n", argument.c_str());
  if (verb == "error") caravan::report_error(argument);
  if (verb == "warn") std::fprintf(stderr, "%s\n", argument.c_str());
  if (verb == "env") print_environment();
  if (verb == "serve") serve();
  if (verb == "meet") meet();
  if (verb == "after") wait_for_end_of(number);
  if (verb == "count") count_requests();
  if (verb == "stranger") be_stranger();
  if (verb == "read") {
    std::string line;
    std::getline(std::cin, line);
    std::printf("read '%s'\n", line.c_str());
  }
  if (verb == "deaf") {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_IGN);
  }
  if (verb == "spawn") spawn(number);
  if (verb == "orphan") leave_orphan(number);
  if (verb == "hang") {
    std::fflush(stdout);
    for (;;) pause();
  }
  if (verb == "stop") {
    const StopSignal stop(StopSignal::Second::is_ignored);
    std::printf("ready\n");
    std::fflush(stdout);
    while (!stop.requested()) usleep(1000);
    std::this_thread::sleep_for(milliseconds(number));
    std::printf("saved\n");
    std::exit(130);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const char* rank = std::getenv("RANK");
  for (int i = 1; i < argc; ++i) {
    const std::string script = argv[i];
    const size_t equals = script.find('=');
    if (script.substr(0, equals) != "*" && (rank == nullptr || script.substr(0, equals) != rank)) continue;
    std::istringstream steps(script.substr(equals + 1));
    for (std::string step; std::getline(steps, step, ',');) run_step(step);
    return 0;
  }
  return 98;
}
