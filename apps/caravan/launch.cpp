#include "apps/caravan/launch.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "apps/caravan/launch_process.h"
#include "apps/caravan/launch_report.h"
#include "caravan/base/error.h"
#include "caravan/comm/rendezvous.h"

namespace caravan {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kGrace{500};  // for the other ranks to end by themselves when one has failed

/// While it lives, the signals that ask for an end, and those that tell of a rank, are read from a descriptor instead
/// of ending the launcher.
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
    if (hang_up.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);  // nohup stays in force
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
  /// The next signal that came, 0 if there is none.
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
  Job(std::vector<RankProcess> processes, const SignalQueue& signals)
      : processes_(std::move(processes)), signals_(signals) {}
  ~Job() { release(processes_); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int run();

 private:
  void wait_for_events();
  void on_signal(int number);
  void tell_stopped();
  void reap();
  void kill_all();
  int verdict() const;

  std::vector<RankProcess> processes_;
  const SignalQueue& signals_;
  std::vector<const RankProcess*> failures_;  ///< earliest first
  std::optional<steady_clock::time_point> kill_at_;
  bool stop_requested_ = false;
  bool insisted_ = false;
  bool stopped_ = false;
};

int Job::run() {
  const auto running = [](const RankProcess& process) { return process.running; };
  while (std::any_of(processes_.begin(), processes_.end(), running)) {
    wait_for_events();
    reap();  // before the signals: a rank that failed is not hidden by a Ctrl-C that came after
    for (int number = signals_.next(); number != 0; number = signals_.next()) on_signal(number);
    if (kill_at_ && steady_clock::now() >= *kill_at_) kill_all();
  }
  return verdict();
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
  poll(entries.data(), entries.size(), timeout);  // interrupted: the loop looks again
}

void Job::on_signal(int number) {
  if (number == SIGCHLD) return tell_stopped();
  if (stop_requested_ || kill_at_) {
    insisted_ = insisted_ || stop_requested_;
    kill_all();
    return;
  }
  stop_requested_ = true;
  std::fprintf(stderr, "caravan: asking %zu ranks to save and stop; once more ends them at once\n", processes_.size());
  for (const RankProcess& process : processes_) {
    if (process.running) kill(process.pid, number == SIGHUP ? SIGHUP : SIGTERM);
  }
}

/// A rank that stands still looks like a hang to whoever watches the job: it is told at once.
void Job::tell_stopped() {
  for (const RankProcess& process : processes_) {
    siginfo_t event{};
    if (!process.running || waitid(P_PID, process.pid, &event, WSTOPPED | WCONTINUED | WNOHANG) != 0) continue;
    if (event.si_pid == 0) continue;
    if (event.si_code == CLD_CONTINUED) {
      std::fprintf(stderr, "caravan: rank %d goes on\n", process.rank);
    } else {
      std::fprintf(
          stderr,
          "caravan: rank %d is stopped (SIG%s); the others wait for it until their time-out. kill -CONT %d lets "
          "it go on\n",
          process.rank, sigabbrev_np(event.si_status), process.pid);
    }
  }
}

void Job::reap() {
  for (RankProcess& process : processes_) {
    if (!process.running || !reap_rank(process)) continue;
    const Ending ending = ending_of(process, stop_requested_);
    stopped_ = stopped_ || ending == Ending::stopped;
    if (ending != Ending::failed && ending != Ending::echo) continue;
    failures_.push_back(&process);
    if (!kill_at_) kill_at_ = steady_clock::now() + kGrace;
  }
}

void Job::kill_all() {
  kill_at_.reset();
  for (RankProcess& process : processes_) kill_rank(process);
}

int Job::verdict() const {
  if (insisted_) return 130;
  if (failures_.empty()) return stopped_ ? 130 : 0;
  const auto is_cause = [this](const RankProcess* process) {
    return ending_of(*process, stop_requested_) == Ending::failed;
  };
  const auto cause = std::find_if(failures_.begin(), failures_.end(), is_cause);
  const RankProcess& culprit = cause != failures_.end() ? **cause : *failures_.front();
  const bool terminal = isatty(STDERR_FILENO) == 1;  // the cursor may stand behind an unfinished progress bar
  const std::string text = report(culprit, failures_, static_cast<int>(processes_.size()));
  std::fprintf(stderr, "%s%s", terminal ? "\n" : "", text.c_str());
  return job_code_of(culprit);
}

}  // namespace

int launch(const LaunchOptions& options) {
  if (options.num_ranks < 1) {
    throw UsageError({.op = "launch",
                      .subject = "ranks",
                      .fact = fmt::format("{} is not a number of ranks", options.num_ranks),
                      .where = "",
                      .action = "use 1 or more"});
  }
  const SignalQueue signals;  // before the server: its thread inherits the mask
  const JobKey key = JobKey::for_launch(options.num_ranks);
  const StoreServer server("127.0.0.1", 0, {.key = key, .log = [](const std::string& line) {
                                              std::fprintf(stderr, "caravan: %s\n", line.c_str());
                                            }});
  return Job(start_ranks(options, {server.port(), key}, signals.mask_before()), signals).run();
}

}  // namespace caravan
