#include "apps/caravan/launch/launch.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <netinet/in.h>
#include <optional>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "apps/caravan/launch/launch_process.h"
#include "apps/caravan/launch/launch_report.h"
#include "apps/caravan/launch/oom_kills.h"
#include "caravan/base/error.h"
#include "caravan/base/system/fd.h"
#include "caravan/base/system/stop_signal.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/comm/store/wire/listen.h"

namespace caravan {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kGrace{500};  // for the other ranks to end by themselves after one has failed
constexpr double kNearLimit = 0.9;   // of the memory limit: above it, memory is the probable cause of a SIGKILL

/// While it lives, SIGINT, SIGTERM, SIGHUP and SIGCHLD are read from a descriptor and have no other effect.
class SignalQueue {
 public:
  SignalQueue() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGCHLD);
    struct sigaction hang_up {};
    sigaction(SIGHUP, nullptr, &hang_up);
    if (hang_up.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);  // under nohup it stays ignored
    pthread_sigmask(SIG_BLOCK, &set, &before_);
    fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~SignalQueue() {
    close(fd_);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int fd() const noexcept { return fd_; }
  const sigset_t& mask_before() const noexcept { return before_; }
  /// The next pending signal, 0 if there is none.
  int next() const {
    signalfd_siginfo info{};
    return read(fd_, &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  int fd_ = -1;
  sigset_t before_{};
};

class Job {
 public:
  Job(std::vector<RankProcess> processes, const SignalQueue& signals, const LaunchOptions& options)
      : processes_(std::move(processes)),
        signals_(signals),
        is_caravan_(options.is_caravan),
        gives_terminal_(options.gives_terminal) {}
  ~Job() { release(processes_); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int run();

 private:
  void wait_for_events();
  void on_signal(int number);
  void report_stopped();
  void reap();
  void handle_signals();
  void kill_all();
  int64_t memory_at_end_of(const RankProcess& victim) const;
  bool used_nearly_all_memory() const;
  int verdict() const;

  std::vector<RankProcess> processes_;
  const SignalQueue& signals_;
  const bool is_caravan_;
  const bool gives_terminal_;
  const OomKills oom_kills_;
  std::vector<const RankProcess*> failures_;  ///< earliest first
  int64_t used_bytes_ = 0;                    ///< by all ranks, when one was killed; the largest
  std::optional<steady_clock::time_point> kill_at_;
  std::optional<steady_clock::time_point> stop_requested_at_;
  bool insisted_ = false;  ///< the user asked twice
};

int Job::run() {
  const auto running = [](const RankProcess& process) { return process.running; };
  while (std::any_of(processes_.begin(), processes_.end(), running)) {
    wait_for_events();
    reap();  // before the signals: a later Ctrl-C does not hide a rank that has failed
    handle_signals();
    if (kill_at_ && steady_clock::now() >= *kill_at_) kill_all();
  }
  const int code = verdict();
  if (!wait_for_groups(processes_)) {
    std::fprintf(stderr, "caravan: processes that ranks have started are killed, but have not ended after %d s\n",
                 static_cast<int>(kGroupPatience.count()));
  }
  return code;
}

void Job::wait_for_events() {
  std::vector<pollfd> entries = {{signals_.fd(), POLLIN, 0}};
  for (const RankProcess& process : processes_) {
    if (process.running) entries.push_back({process.pid_fd, POLLIN, 0});
  }
  int timeout = -1;
  if (kill_at_) {
    const auto left = std::chrono::ceil<milliseconds>(*kill_at_ - steady_clock::now()).count();
    timeout = static_cast<int>(std::max<int64_t>(left, 0));
  }
  poll(entries.data(), entries.size(), timeout);  // if interrupted, the caller's loop comes back
}

void Job::handle_signals() {
  for (int number = signals_.next(); number != 0; number = signals_.next()) on_signal(number);
}

void Job::on_signal(int number) {
  if (number == SIGCHLD) return report_stopped();
  if (stop_requested_at_ && steady_clock::now() - *stop_requested_at_ < kOneRequest) return;
  if (stop_requested_at_ || kill_at_) {
    insisted_ = insisted_ || stop_requested_at_;
    std::fprintf(stderr, "caravan: killing all ranks\n");
    kill_all();
    return;
  }
  stop_requested_at_ = steady_clock::now();
  std::fprintf(stderr, "caravan: asking %zu ranks to stop;%s a second signal kills them\n", processes_.size(),
               is_caravan_ ? " a run in progress saves a checkpoint;" : "");
  for (const RankProcess& process : processes_) {
    if (process.running) kill(process.pid, number == SIGHUP ? SIGHUP : SIGTERM);
  }
}

/// A stopped rank looks like a hang, so it is reported at once.
void Job::report_stopped() {
  for (const RankProcess& process : processes_) {
    siginfo_t event{};
    if (!process.running || waitid(P_PID, process.pid, &event, WSTOPPED | WCONTINUED | WNOHANG) != 0) continue;
    if (event.si_pid == 0) continue;
    if (event.si_code == CLD_CONTINUED) {
      std::fprintf(stderr, "caravan: rank %d continues\n", process.rank);
    } else {
      std::fprintf(stderr,
                   "caravan: rank %d is stopped (SIG%s); the others wait for it until they time out. To continue it: "
                   "kill -CONT %d\n",
                   process.rank, sigabbrev_np(event.si_status), process.pid);
    }
  }
}

void Job::reap() {
  for (RankProcess& process : processes_) {
    if (!process.running || !reap_rank(process)) continue;
    // A Ctrl-C ends a rank that has not installed its handler yet. The launcher has got it, too.
    if (WIFSIGNALED(process.wait_status)) handle_signals();
    // So does one that only a rank with the terminal has got.
    if (gives_terminal_ && process.rank == 0 && WIFSIGNALED(process.wait_status) &&
        WTERMSIG(process.wait_status) == SIGINT) {
      insisted_ = true;
      kill_at_ = steady_clock::now();
      continue;
    }
    const Ending ending = ending_of(process, {.stop_requested = stop_requested_at_.has_value()});
    if (ending != Ending::failed && ending != Ending::lost_peer) continue;
    failures_.push_back(&process);
    if (WIFSIGNALED(process.wait_status)) used_bytes_ = std::max(used_bytes_, memory_at_end_of(process));
    if (!kill_at_) kill_at_ = steady_clock::now() + kGrace;
  }
  reap_orphans(processes_);
}

void Job::kill_all() {
  kill_at_.reset();
  for (RankProcess& process : processes_) kill_rank(process);
}

/// The ranks share arenas and library pages, which count once: in the peak of the victim.
int64_t Job::memory_at_end_of(const RankProcess& victim) const {
  int64_t used = victim.peak_resident_bytes;
  for (const RankProcess& process : processes_) {
    if (process.running) used += oom_kills_.private_memory(process.pid);
  }
  return used;
}

bool Job::used_nearly_all_memory() const {
  const int64_t limit = oom_kills_.memory_limit();
  return limit > 0 && static_cast<double>(used_bytes_) > kNearLimit * static_cast<double>(limit);
}

int Job::verdict() const {
  if (insisted_) return 130;
  const bool are_counted = oom_kills_.are_counted();
  const JobFacts facts{.num_ranks = static_cast<int>(processes_.size()),
                       .is_caravan = is_caravan_,
                       .stop_requested = stop_requested_at_.has_value(),
                       .memory_ran_out = are_counted ? oom_kills_.happened() : used_nearly_all_memory(),
                       .is_estimated = !are_counted};
  const auto stopped = std::ranges::find_if(
      processes_, [&](const RankProcess& process) { return ending_of(process, facts) == Ending::stopped; });
  // A request to stop ends a rank that waits for others, and all the others may have joined by then.
  const auto is_lost_peer = [&](const RankProcess* process) { return ending_of(*process, facts) == Ending::lost_peer; };
  if (failures_.empty() || (stopped != processes_.end() && std::ranges::all_of(failures_, is_lost_peer))) {
    if (stopped == processes_.end()) return 0;
    if (const std::string error = stopped->error(); !error.empty()) std::fprintf(stderr, "%s\n", error.c_str());
    return 130;
  }
  const auto cause = std::ranges::find_if_not(failures_, is_lost_peer);
  const RankProcess& culprit = cause != failures_.end() ? **cause : *failures_.front();
  // If all ranks throw the same error, rank 0 reports it. The code is that of the culprit: rank 0 may have been killed
  // before it could end.
  const RankProcess& first = processes_.front();
  const bool is_common = !culprit.error().empty() && is_same_error(culprit.error(), first.error());
  // A rank 0 that was killed may leave the cursor at the end of a progress bar.
  const bool breaks_line = WIFSIGNALED(first.wait_status) && isatty(STDERR_FILENO) == 1;
  std::fprintf(stderr, "%s%s", breaks_line ? "\n" : "", report(is_common ? first : culprit, failures_, facts).c_str());
  return job_code_of(culprit, facts);
}

/// A free port, bound so that no other process gets it. It is not listened on, so that a rank may bind it, too, if it
/// sets SO_REUSEADDR, as servers do.
Fd reserve_port() {
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  sockaddr_in any{};
  any.sin_family = AF_INET;
  if (!socket || setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      bind(socket.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0) {
    throw ResourceError({.op = "launch",
                         .subject = "MASTER_PORT",
                         .fact = fmt::format("no port is free: {}", strerrordesc_np(errno)),
                         .action = "raise the limit of open files (ulimit -n), or end programs that hold ports"});
  }
  return socket;
}

/// Takes the terminal back from the group that it was given to.
class Terminal {
 public:
  explicit Terminal(bool is_given) : is_given_(is_given && tcgetpgrp(STDIN_FILENO) == getpgrp()) {}
  ~Terminal() {
    if (!is_given_) return;
    const auto before = std::signal(SIGTTOU, SIG_IGN);  // a background group that calls it would be stopped
    tcsetpgrp(STDIN_FILENO, getpgrp());
    std::signal(SIGTTOU, before);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

 private:
  bool is_given_;
};

}  // namespace

int launch(const LaunchOptions& options) {
  if (options.num_ranks < 1) {
    throw UsageError({.op = "launch",
                      .subject = "ranks",
                      .fact = fmt::format("{} ranks cannot be started", options.num_ranks),
                      .action = "use 1 or more"});
  }
  const SignalQueue signals;  // before the server: its thread inherits the mask
  const JobKey key = JobKey::for_launch(options.num_ranks);
  const StoreServer server("127.0.0.1", 0, {.key = key, .log = [](const std::string& line) {
                                              std::fprintf(stderr, "caravan: %s\n", line.c_str());
                                            }});
  const Fd reserved = reserve_port();
  const ServedStoreInfo store{.port = server.port(), .master_port = store_socket::port_of(reserved.get()), .key = key};
  const Terminal terminal(options.gives_terminal);
  return Job(start_ranks(options, store, signals.mask_before()), signals, options).run();
}

}  // namespace caravan
