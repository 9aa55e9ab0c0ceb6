#include "tests/ranks/process_ranks.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "caravan/comm/backends/shared/shm.h"
#include "caravan/comm/store/rendezvous.h"
#include "tests/ranks/environment.h"

namespace caravan::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kStartTimeout{20'000};
constexpr const char* kCallVariable = "CARAVAN_TEST_CALL";  // the call of run_processes in which the process is a rank

std::string current_test() {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  return std::string(test->test_suite_name()) + "." + test->name();
}

/// Waits for all ranks: under load they start further apart than the time-outs of some tests.
void meet(Store& store, int ranks) {
  if (store.add("started", 1) == ranks) store.set("all started", "");
  store.get("all started", kStartTimeout);
}

/// Runs the process as a rank and ends it.
[[noreturn]] void be_rank(const RankBody& body, const CommOptions& options, const MakeWorld& make) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    const RankInfo info = RankInfo::from_environment();
    std::shared_ptr<Store> store =
        info.world_size == 1 ? local_store() : connect_store(info.master_addr, info.master_port, kStartTimeout);
    meet(*store, info.world_size);
    auto world = make(info, store, options);
    body(world);
    world.reset();  // while the store still exists
  } catch (const std::exception& exception) {
    ADD_FAILURE() << "thrown: " << exception.what();
  }
  std::cout << std::flush;
  std::exit(::testing::Test::HasFailure() ? 1 : 0);
}

class Process {
 public:
  Process(int rank, int ranks, int port, int call) : output_(memfd_create("output", MFD_CLOEXEC)) {
    std::vector<std::string> variables = rank_environment(rank, ranks, port, {{kCallVariable, std::to_string(call)}});
    std::vector<std::string> words{"/proc/self/exe", "--gtest_filter=" + current_test(), "--gtest_brief=1",
                                   "--gtest_also_run_disabled_tests"};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, output_, 1);
    posix_spawn_file_actions_adddup2(&actions, output_, 2);
    const int error =
        posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, pointers(words).data(), pointers(variables).data());
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) {
      ADD_FAILURE() << "cannot start rank " << rank << ": " << std::strerror(error);
      pid_ = -1;
    }
  }
  ~Process() { close(output_); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// True if the process has ended.
  bool poll() {
    int status = 0;
    if (!ended_ && pid_ > 0 && waitpid(pid_, &status, WNOHANG) == 0) return false;
    if (ended_) return true;
    ended_ = true;
    if (WIFEXITED(status)) end_.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) end_.signal = WTERMSIG(status);
    return true;
  }

  void kill() const {
    if (!ended_ && pid_ > 0) ::kill(pid_, SIGKILL);
  }

  RankEnd end() {
    std::array<char, 4096> bytes;
    off_t at = 0;
    for (ssize_t got = 0; (got = pread(output_, bytes.data(), bytes.size(), at)) > 0; at += got) {
      end_.output.append(bytes.data(), static_cast<size_t>(got));
    }
    return end_;
  }

 private:
  int output_;
  pid_t pid_ = -1;
  bool ended_ = false;
  RankEnd end_;
};

/// The index of this call within the current test.
int count_call() {
  static std::string test;
  static int calls = 0;
  if (test != current_test()) {
    test = current_test();
    calls = 0;
  }
  return calls++;
}

}  // namespace

std::shared_ptr<Communicator> shm_world(const RankInfo& info, const std::shared_ptr<Store>& store,
                                        const CommOptions& options) {
  return make_shm_world(info, store, options);
}

std::vector<RankEnd> run_processes(int ranks, const RankBody& body, const CommOptions& options, const MakeWorld& make) {
  const int call = count_call();
  if (const char* wanted = std::getenv(kCallVariable)) {
    if (std::to_string(call) == wanted) be_rank(body, options, make);
    return std::vector<RankEnd>(static_cast<size_t>(ranks), RankEnd{0, 0, ""});  // a call before that one
  }
  const StoreServer server("127.0.0.1", 0);
  std::vector<std::unique_ptr<Process>> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    processes.push_back(std::make_unique<Process>(rank, ranks, server.port(), call));
  }
  const auto deadline = steady_clock::now() + options.timeout + std::chrono::seconds(30);
  bool killed = false;
  for (const auto& process : processes) {
    while (!process->poll()) {
      if (!killed && steady_clock::now() > deadline) {
        killed = true;
        ADD_FAILURE() << "ranks did not end";
        for (const auto& each : processes) each->kill();
      }
      ::poll(nullptr, 0, 1);
    }
  }
  std::vector<RankEnd> ends;
  for (const auto& process : processes) ends.push_back(process->end());
  return ends;
}

void run_process_ranks(int ranks, const RankBody& body, const CommOptions& options) {
  run_process_ranks(ranks, body, options, shm_world);
}

void run_process_ranks(int ranks, const RankBody& body, const CommOptions& options, const MakeWorld& make) {
  const std::vector<RankEnd> ends = run_processes(ranks, body, options, make);
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    const RankEnd& end = ends[rank];
    if (end.exit_code == 0) continue;
    ADD_FAILURE() << "rank " << rank << " of " << ranks << " ended with exit code " << end.exit_code << ", signal "
                  << end.signal << ":\n"
                  << end.output;
  }
}

}  // namespace caravan::testing
