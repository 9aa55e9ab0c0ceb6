#include "apps/caravan/launch/launch_process.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <string_view>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/error_report.h"

namespace caravan {
namespace {

/// Everything a child needs, built before the fork. After it only async-signal-safe calls are allowed: the store
/// server's thread may hold the allocator's lock.
struct Image {
  std::vector<std::string> argument_texts;
  std::vector<std::string> variable_texts;
  std::vector<char*> arguments;
  std::vector<char*> variables;

  Image(const LaunchOptions& options, const RankProcess& process, const ServedStoreInfo& store);
};

Image::Image(const LaunchOptions& options, const RankProcess& process, const ServedStoreInfo& store) {
  argument_texts = options.arguments;
  argument_texts.insert(argument_texts.begin(), options.program);
  const std::vector<std::string> job = {
      fmt::format("RANK={}", process.rank),
      fmt::format("WORLD_SIZE={}", options.num_ranks),
      fmt::format("LOCAL_RANK={}", process.rank),
      fmt::format("LOCAL_WORLD_SIZE={}", options.num_ranks),
      "MASTER_ADDR=127.0.0.1",
      fmt::format("MASTER_PORT={}", store.master_port),
      "CARAVAN_JOB_ID=" + store.key.id,
      "CARAVAN_SECRET=" + store.key.secret,
      fmt::format("CARAVAN_STORE_PORT={}", store.port),
      fmt::format("{}={}", kErrorFileVariable, process.error_fd < 0 ? "" : std::to_string(process.error_fd)),
      "TORCHELASTIC_USE_AGENT_STORE=0",  // the launcher may itself run under torchrun
  };
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const std::string_view name = text.substr(0, text.find('=') + 1);
    bool replaced = false;
    for (const std::string& own : job) replaced = replaced || (!name.empty() && own.starts_with(name));
    if (!replaced) variable_texts.emplace_back(text);
  }
  variable_texts.insert(variable_texts.end(), job.begin(), job.end());
  for (std::string& text : argument_texts) arguments.push_back(text.data());
  for (std::string& text : variable_texts) variables.push_back(text.data());
  arguments.push_back(nullptr);
  variables.push_back(nullptr);
}

struct Streams {
  int in;
  int out;
  int error;
  int error_file;
  bool takes_terminal;
};

[[noreturn]] void become_rank(const Image& image, const Streams& streams, const sigset_t& mask, pid_t launcher,
                              int failure_pipe) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(1);  // the launcher died before the line above
  bool ready = dup2(streams.in, 0) == 0 && dup2(streams.out, 1) == 1 && dup2(streams.error, 2) == 2;
  if (streams.error_file >= 0) fcntl(streams.error_file, F_SETFD, 0);  // survives the exec
  // The kernel stops a background process group that writes to a terminal with `stty tostop`.
  ready = ready && std::signal(SIGTTOU, SIG_IGN) != SIG_ERR && sigprocmask(SIG_SETMASK, &mask, nullptr) == 0;
  if (ready && streams.takes_terminal) {
    tcsetpgrp(0, getpid());
    std::signal(SIGTSTP, SIG_IGN);  // stopped alone, it would keep the terminal
  }
  if (ready) execve(image.arguments[0], image.arguments.data(), image.variables.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(failure_pipe, &error, sizeof(error));
  _exit(127);
}

constexpr const char* kRaiseDescriptors = "raise the limit of open files (ulimit -n)";

ResourceError no_log(const std::string& path, int error) {
  return ResourceError({.op = "launch",
                        .subject = path,
                        .fact = fmt::format("cannot write the log of a rank: {}", strerrordesc_np(error)),
                        .action = error == EMFILE ? kRaiseDescriptors : "choose a writable folder"});
}

int open_unnamed_file(int flags) {
  std::error_code ignored;
  const auto folder = std::filesystem::temp_directory_path(ignored);
  const int fd = open(folder.c_str(), flags | O_RDWR | O_CLOEXEC | O_TMPFILE, 0600);
  return fd >= 0 ? fd : memfd_create("caravan_rank", MFD_CLOEXEC);
}

void open_log(RankProcess& process, const std::string& log_dir) {
  constexpr int kFlags = O_RDWR | O_APPEND | O_CLOEXEC;
  if (log_dir.empty()) {
    process.log_fd = open_unnamed_file(O_APPEND);
  } else {
    std::error_code error;
    std::filesystem::create_directories(log_dir, error);
    if (error) throw no_log(log_dir, error.value());
    process.log_path = fmt::format("{}/rank_{}.log", log_dir, process.rank);
    process.log_fd = open(process.log_path.c_str(), kFlags | O_CREAT | O_TRUNC, 0666);
  }
  if (process.log_fd < 0) throw no_log(process.log_path, errno);
}

void start_rank(RankProcess& process, const LaunchOptions& options, const ServedStoreInfo& store, const sigset_t& mask,
                int null, int failure_pipe) {
  if (process.rank > 0) open_log(process, options.log_dir);
  process.error_fd = open_unnamed_file(0);  // without one the rank writes to its stderr
  const Image image(options, process, store);
  const bool first = process.rank == 0;
  // The kernel stops a background process group that reads from its terminal.
  const bool takes_terminal = first && options.gives_terminal && tcgetpgrp(0) == getpgrp();
  const Streams streams{first && (takes_terminal || isatty(0) == 0) ? 0 : null, first ? 1 : process.log_fd,
                        first ? 2 : process.log_fd, process.error_fd, takes_terminal};
  const pid_t launcher = getpid();
  process.pid = fork();
  if (process.pid == 0) become_rank(image, streams, mask, launcher, failure_pipe);
  process.running = process.pid > 0;
  if (process.running) {
    setpgid(process.pid, process.pid);  // in both processes, because either may run first
    process.pid_fd = static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0));
  }
  if (process.pid < 0 || process.pid_fd < 0) {
    const int error = errno;
    throw ResourceError({.op = "launch",
                         .subject = fmt::format("rank {} of {}", process.rank, options.num_ranks),
                         .fact = fmt::format("cannot start a process: {}", strerrordesc_np(error)),
                         .action = error == EMFILE ? kRaiseDescriptors
                                                   : "use fewer ranks, or raise the limit of processes (ulimit -u)"});
  }
}

/// What to do if the program cannot be run.
const char* action_for(int error) {
  if (error == ENOEXEC) return "if it is a script, begin it with the line of its interpreter, such as #!/bin/sh";
  if (error == ENOENT) return "give the path of an executable file; of a script, check the interpreter after #!";
  return "give the path of an executable file";
}

/// A pipe that closes when all children have called exec, or carries the errno of one that failed to.
class FailurePipe {
 public:
  FailurePipe() {
    if (pipe2(ends_, O_CLOEXEC) != 0) ends_[0] = ends_[1] = -1;
  }
  ~FailurePipe() {
    close_writer();
    close(ends_[0]);
  }
  int writer() const noexcept { return ends_[1]; }
  /// 0 once every child runs its program.
  int read_error() {
    close_writer();
    int error = 0;
    ssize_t got = 0;
    do {
      got = read(ends_[0], &error, sizeof(error));
    } while (got < 0 && errno == EINTR);
    return got == sizeof(error) ? error : 0;
  }

 private:
  void close_writer() {
    if (ends_[1] >= 0) close(ends_[1]);
    ends_[1] = -1;
  }
  int ends_[2];
};

void end_all(std::vector<RankProcess>& processes) noexcept {
  for (RankProcess& process : processes) kill_rank(process);
  for (RankProcess& process : processes) {
    if (process.running) waitpid(process.pid, nullptr, 0);
  }
  wait_for_groups(processes);
  release(processes);
}

/// Waits until this process has no child in the group; false at the deadline. A child that is killed leaves its own
/// children to this process before it can be reaped, so that none of the group is missed.
bool wait_for_group(pid_t group, std::chrono::steady_clock::time_point deadline) noexcept {
  sigset_t child_ended;
  sigemptyset(&child_ended);
  sigaddset(&child_ended, SIGCHLD);
  siginfo_t ended{};
  while (waitid(P_PGID, static_cast<id_t>(group), &ended, WEXITED | WNOHANG) == 0) {
    if (std::exchange(ended.si_pid, 0) != 0) continue;
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    const timespec timeout{.tv_sec = left.count() / 1'000'000'000, .tv_nsec = left.count() % 1'000'000'000};
    sigtimedwait(&child_ended, nullptr, &timeout);
  }
  return true;
}

}  // namespace

std::string RankProcess::error() const {
  struct stat file {};
  if (error_fd < 0 || fstat(error_fd, &file) != 0) return "";
  std::string text(static_cast<size_t>(file.st_size), '\0');
  const ssize_t got = pread(error_fd, text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

std::vector<RankProcess> start_ranks(const LaunchOptions& options, const ServedStoreInfo& store, const sigset_t& mask) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::vector<RankProcess> processes;
  processes.reserve(options.num_ranks);
  FailurePipe failure;
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  try {
    for (int rank = 0; rank < options.num_ranks; ++rank) {
      processes.emplace_back().rank = rank;
      start_rank(processes.back(), options, store, mask, null, failure.writer());
    }
    if (const int error = failure.read_error(); error != 0) {
      throw UsageError({.op = "launch",
                        .subject = options.program,
                        .fact = fmt::format("cannot be run: {}", strerrordesc_np(error)),
                        .action = action_for(error)});
    }
  } catch (...) {
    end_all(processes);
    close(null);
    throw;
  }
  close(null);
  return processes;
}

void kill_rank(RankProcess& process) noexcept {
  if (!process.running) return;
  process.killed = true;
  kill(process.pid, SIGKILL);
  kill(-process.pid, SIGKILL);  // its children, if it has become a group
}

bool reap_rank(RankProcess& process) noexcept {
  siginfo_t ended{};
  // WNOWAIT: while the rank is a zombie its process id is not reused for another group.
  if (waitid(P_PID, process.pid, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0) return false;
  kill(-process.pid, SIGKILL);
  rusage usage{};
  wait4(process.pid, &process.wait_status, 0, &usage);
  process.peak_resident_bytes = int64_t{usage.ru_maxrss} * 1024;
  process.running = false;
  return true;
}

void reap_orphans(const std::vector<RankProcess>& processes) noexcept {
  siginfo_t ended{};
  // WNOWAIT: the status of a rank is for reap_rank.
  while (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0) {
    const auto is_it = [&](const RankProcess& process) { return process.running && process.pid == ended.si_pid; };
    if (std::ranges::any_of(processes, is_it)) return;
    waitpid(std::exchange(ended.si_pid, 0), nullptr, WNOHANG);
  }
}

bool wait_for_groups(const std::vector<RankProcess>& processes) noexcept {
  const auto deadline = std::chrono::steady_clock::now() + kGroupPatience;
  bool all_ended = true;
  for (const RankProcess& process : processes) {
    all_ended = (process.pid <= 0 || wait_for_group(process.pid, deadline)) && all_ended;
  }
  return all_ended;
}

void release(std::vector<RankProcess>& processes) noexcept {
  for (RankProcess& process : processes) {
    if (process.pid_fd >= 0) close(process.pid_fd);
    if (process.log_fd >= 0) close(process.log_fd);
    if (process.error_fd >= 0) close(process.error_fd);
    process.pid_fd = process.log_fd = process.error_fd = -1;
  }
}

}  // namespace caravan
