#include "tests/launch/child.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <pty.h>
#include <sstream>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

namespace caravan {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::string contents(int fd) {
  std::string text;
  char bytes[4096];
  off_t at = 0;
  for (ssize_t got = 0; (got = pread(fd, bytes, sizeof(bytes), at)) > 0; at += got) {
    text.append(bytes, static_cast<size_t>(got));
  }
  return text;
}

int output_file() {
  const int fd = memfd_create("output", MFD_CLOEXEC);
  fcntl(fd, F_SETFL, O_APPEND);
  return fd;
}

}  // namespace

Child::Child(std::vector<std::string> command) : Child(std::move(command), Options()) {}

Child::Child(std::vector<std::string> command, const Options& options)
    : out_(output_file()), err_(output_file()), patience_(static_cast<int64_t>(options.patience_s * 1e3)) {
  static int next = 0;
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  mark_ = "CARAVAN_TEST_MARK=" + std::to_string(getpid()) + "." + std::to_string(next++);
  std::vector<std::string> variables = options.environment;
  variables.push_back(mark_);
  for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  std::vector<char*> argv;
  std::vector<char*> envp;
  for (std::string& text : command) argv.push_back(text.data());
  for (std::string& text : variables) envp.push_back(text.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  const int in = open(options.input.empty() ? "/dev/null" : options.input.c_str(), O_RDONLY | O_CLOEXEC);
  pid_ = options.terminal ? forkpty(&terminal_, nullptr, nullptr, nullptr) : fork();
  if (pid_ == 0) {
    if (!options.terminal) {
      dup2(in, 0);
      dup2(out_, 1);
      dup2(err_, 2);
    }
    std::signal(SIGINT, SIG_DFL);  // a shell ignores it for what runs in the background
    if (options.ignores_hang_up) std::signal(SIGHUP, SIG_IGN);
    execvpe(argv[0], argv.data(), envp.data());
    _exit(99);
  }
  close(in);
  if (terminal_ >= 0) fcntl(terminal_, F_SETFL, O_NONBLOCK);
}

Child::~Child() {
  for (const pid_t pid : living()) kill(pid, SIGKILL);
  if (status_ < 0) waitpid(pid_, &status_, 0);
  // Orphans are reparented to this process. Reaping them leaves no zombies even where init reaps none.
  for (int i = 0; i < 1000 && waitpid(-1, nullptr, WNOHANG) >= 0; ++i) usleep(1000);
  for (const int fd : {out_, err_, terminal_}) {
    if (fd >= 0) close(fd);
  }
}

void Child::signal(int number) const { ASSERT_EQ(kill(pid_, number), 0); }

void Child::type(const std::string& keys) {
  ASSERT_EQ(write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
}

int Child::wait() {
  const auto deadline = steady_clock::now() + patience_;
  while (status_ < 0) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      status_ = WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
    } else if (steady_clock::now() > deadline) {
      ADD_FAILURE() << "it did not end; stdout:\n" << out() << "stderr:\n" << err();
      for (const pid_t pid : living()) kill(pid, SIGKILL);
      waitpid(pid_, &status, 0);
      status_ = -2;
      return -2;
    } else {
      std::this_thread::sleep_for(milliseconds(2));
    }
  }
  return status_;
}

std::string Child::out() {
  if (terminal_ < 0) return contents(out_);
  char bytes[4096];
  for (ssize_t got = 0; (got = read(terminal_, bytes, sizeof(bytes))) > 0;) {
    terminal_text_.append(bytes, static_cast<size_t>(got));
  }
  return terminal_text_;
}

std::string Child::err() { return contents(err_); }

void Child::expect_soon(const std::string& text, int times) {
  const auto deadline = steady_clock::now() + patience_;
  for (;;) {
    const std::string all = out() + err();
    int found = 0;
    for (size_t at = all.find(text); at != std::string::npos; at = all.find(text, at + 1)) ++found;
    if (found >= times) return;
    if (steady_clock::now() > deadline) {
      ADD_FAILURE() << "'" << text << "' did not come " << times << " times in:\n" << all;
      return;
    }
    std::this_thread::sleep_for(milliseconds(2));
  }
}

std::vector<pid_t> Child::living() const {
  std::vector<pid_t> pids;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "environ");
    std::stringstream variables;
    variables << file.rdbuf();  // empty for a zombie
    const std::string text = "\0" + variables.str();
    if (text.find(mark_ + '\0') != std::string::npos) pids.push_back(std::stoi(name));
  }
  return pids;
}

bool Child::all_gone(double seconds) const {
  const auto deadline = steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!living().empty()) {
    if (steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

}  // namespace caravan
