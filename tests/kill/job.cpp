#include "tests/kill/job.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <poll.h>
#include <spawn.h>
#include <sstream>
#include <stdexcept>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/ranks/environment.h"

namespace caravan::kill {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMark = "CARAVAN_TEST_KILL";  // marks the processes of a job

std::string mark() { return std::string(kMark) + "=" + std::to_string(getpid()); }

void read_more(int fd, std::string& to) {
  std::array<char, 4096> bytes;
  for (ssize_t got = 0; (got = read(fd, bytes.data(), bytes.size())) > 0;) {
    to.append(bytes.data(), static_cast<size_t>(got));
  }
}

}  // namespace

Job::Job(const std::string& program, int num_ranks, uint64_t seed)
    : key_(JobKey::for_launch(num_ranks)),
      server_("127.0.0.1", 0, {.key = key_}),
      ranks_(static_cast<size_t>(num_ranks)) {
  for (int i = 0; i < num_ranks; ++i) {
    Rank& rank = ranks_[static_cast<size_t>(i)];
    std::array<int, 2> pipe{};
    if (pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK) != 0) throw std::runtime_error("no pipe");
    rank.out = pipe[0];
    std::vector<std::string> words{program, std::to_string(seed)};
    std::vector<std::string> variables = testing::rank_environment(
        i, num_ranks, server_.port(),
        {{"CARAVAN_JOB_ID", key_.id}, {"CARAVAN_SECRET", key_.secret}, {kMark, std::to_string(getpid())}});
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe[1], 1);
    posix_spawn_file_actions_adddup2(&actions, pipe[1], 2);
    const int error = posix_spawn(&rank.pid, program.c_str(), &actions, nullptr, testing::pointers(words).data(),
                                  testing::pointers(variables).data());
    posix_spawn_file_actions_destroy(&actions);
    close(pipe[1]);
    if (error != 0) throw std::runtime_error(program + ": " + std::strerror(error));
    rank.running = true;
    rank.pid_fd = static_cast<int>(syscall(SYS_pidfd_open, rank.pid, 0));
  }
}

Job::~Job() {
  for (Rank& rank : ranks_) {
    if (rank.running) {
      ::kill(rank.pid, SIGKILL);
      waitpid(rank.pid, nullptr, 0);
    }
    if (rank.pid_fd >= 0) close(rank.pid_fd);
    if (rank.out >= 0) close(rank.out);
  }
}

void Job::read_and_reap() {
  std::vector<pollfd> entries;
  for (const Rank& rank : ranks_) {
    if (rank.running) entries.push_back({rank.pid_fd, POLLIN, 0});
  }
  poll(entries.data(), entries.size(), 1);
  for (Rank& rank : ranks_) {
    if (!rank.running) continue;
    int status = 0;
    const bool ended = waitpid(rank.pid, &status, WNOHANG) == rank.pid;
    read_more(rank.out, rank.end.output);
    if (!ended) continue;
    rank.running = false;
    rank.end.when = Clock::now();
    if (WIFEXITED(status)) rank.end.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) rank.end.signal = WTERMSIG(status);
  }
}

bool Job::all_ready(Clock::duration patience) {
  const auto until = Clock::now() + patience;
  const auto is_ready = [](const Rank& rank) { return rank.end.output.find("ready\n") != std::string::npos; };
  const auto has_ended = [](const Rank& rank) { return !rank.running; };
  while (!std::all_of(ranks_.begin(), ranks_.end(), is_ready)) {
    if (Clock::now() > until || std::any_of(ranks_.begin(), ranks_.end(), has_ended)) return false;
    read_and_reap();
  }
  return true;
}

void Job::signal(int rank, int number) const {
  const Rank& target = ranks_[static_cast<size_t>(rank)];
  if (target.running) ::kill(target.pid, number);
}

bool Job::all_ended(Clock::duration patience) {
  const auto until = Clock::now() + patience;
  const auto runs = [](const Rank& rank) { return rank.running; };
  while (std::any_of(ranks_.begin(), ranks_.end(), runs)) {
    if (Clock::now() > until) return false;
    read_and_reap();
  }
  return true;
}

Surroundings Surroundings::now() {
  Surroundings found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/dev/shm", ignored)) {
    // Names of other programs may change, and other tests keep folders there.
    const std::string name = entry.path().filename().string();
    if (name.find("caravan") != std::string::npos && entry.is_regular_file(ignored)) found.shared_names.push_back(name);
  }
  std::sort(found.shared_names.begin(), found.shared_names.end());
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    if (!std::isdigit(static_cast<unsigned char>(entry.path().filename().string()[0]))) continue;
    std::ifstream file(entry.path() / "environ");
    std::stringstream variables;
    variables << file.rdbuf();
    if ((variables.str() + '\0').find(mark() + '\0') != std::string::npos) ++found.marked_processes;
  }
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd", ignored)) ++found.descriptors;
  return found;
}

std::string Surroundings::text() const {
  return std::to_string(shared_names.size()) + " names in /dev/shm, " + std::to_string(marked_processes) +
         " processes, " + std::to_string(descriptors) + " descriptors";
}

}  // namespace caravan::kill
