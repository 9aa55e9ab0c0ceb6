// Killed ranks, killed launchers, and Ctrl-C.
#include <arpa/inet.h>
#include <csignal>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/command/command.h"

namespace caravan::stop_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class StopTest : public CommandTest {
 protected:
  /// A run of many hours.
  static Words endless(std::vector<std::string> overrides = {}) {
    overrides.insert(overrides.begin(), {"train.steps=100000000", "train.eval_every=0"});
    return set(overrides);
  }
  /// A run whose steps take many seconds.
  static Words slow() {
    return endless({"model.layers=12", "model.width=512", "model.context=256", "train.global_batch=60"});
  }
  bool has_checkpoint(const std::string& run) const {
    for (const auto& entry : std::filesystem::directory_iterator(folder() / run)) {
      if (entry.path().filename().string().starts_with("step_")) return true;
    }
    return false;
  }
};

TEST_F(StopTest, AKilledRankIsNamedAndEndsTheJob) {
  for (int victim = 0; victim < 3; ++victim) {
    const auto job = start(tiny("run" + std::to_string(victim), 3, endless()));
    job->expect_soon("step 5/");
    kill(rank_process(*job, victim), SIGKILL);
    EXPECT_EQ(job->wait(), 4);
    EXPECT_THAT(job->err(),
                AllOf(HasSubstr("caravan: rank " + std::to_string(victim) + " of 3 was killed by signal 9")));
    EXPECT_TRUE(job->all_gone(0));
  }
}

TEST_F(StopTest, AKilledRankEndsAJobThatComputes) {
  const auto job = start(tiny("run", 3, slow()));
  job->expect_soon("batch  ");
  kill(rank_process(*job, 1), SIGKILL);
  EXPECT_EQ(job->wait(), 4);
  EXPECT_THAT(job->err(), HasSubstr("caravan: rank 1 of 3 was killed by signal 9"));
  EXPECT_TRUE(job->all_gone(0));
}

TEST_F(StopTest, NothingOutlivesAKilledLauncher) {
  const auto job = start(tiny("run", 3, endless()));
  job->expect_soon("step 3/");
  EXPECT_EQ(job->living().size(), 4U);
  for (const pid_t pid : job->living()) {
    // Named shared memory would stay behind.
    EXPECT_THAT(text_of("/proc/" + std::to_string(pid) + "/maps"), Not(HasSubstr("/dev/shm/"))) << pid;
  }
  job->signal(SIGKILL);
  job->wait();
  EXPECT_TRUE(job->all_gone(10));
}

TEST_F(StopTest, ASignalSavesAndTheRunContinues) {
  struct Case {
    int ranks;
    int signal;
    std::string backend;
  };
  for (const Case& now :
       {Case{1, SIGINT, "thread"}, Case{2, SIGTERM, "thread"}, Case{2, SIGINT, "shm"}, Case{3, SIGTERM, "shm"}}) {
    const std::string run = "run" + std::to_string(now.signal) + now.backend;
    const Words more = endless({"comm.backend=" + now.backend});
    const auto job = start(tiny(run, now.ranks, more));
    job->expect_soon("step 3/");
    job->signal(now.signal);
    EXPECT_EQ(job->wait(), 130) << job->err();
    EXPECT_THAT(job->err(), AllOf(HasSubstr("stopped on request after step "), HasSubstr("continue with --resume")));
    EXPECT_TRUE(job->all_gone(0));
    const auto lines = log(run);
    ASSERT_FALSE(lines.empty());
    const int64_t done = lines.back().at("step");
    Words resume = more;
    resume.insert(resume.end(), {"--resume", "--stop-after", std::to_string(done + 2)});
    const Result rest = train(run, now.ranks, resume);
    EXPECT_EQ(rest.code, 0) << rest.err;
    EXPECT_THAT(rest.out, HasSubstr("resumed after step " + std::to_string(done)));
    const auto all = log(run);
    ASSERT_EQ(all.size(), static_cast<size_t>(done + 2));
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].at("step"), i + 1);
  }
}

/// Stops in the middle of an evaluation, which takes much longer than a step. If a run is so slow that the signal
/// arrives in the step before, the evaluation is cut short as well.
class StopInEvaluation : public StopTest, public ::testing::WithParamInterface<int> {
 protected:
  Words evaluated() const {
    std::string text;
    for (int i = 0; i < 6; ++i) text += text_of(path("text.txt"));
    return set({"train.steps=4", "train.eval_every=2", "checkpoint.every=1", "checkpoint.keep_best=true",
                "train.eval_batches=0", "data.validation=" + file("validation.txt", text)});
  }
  /// What does not depend on the machine.
  std::vector<nlohmann::json> numbers(const std::string& run) const {
    std::vector<nlohmann::json> lines;
    for (const nlohmann::json& line : log(run)) {
      nlohmann::json kept;
      for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens", "val_loss", "val_bits_per_byte"}) {
        if (line.contains(key)) kept[key] = line[key];
      }
      lines.push_back(kept);
    }
    return lines;
  }
  std::unique_ptr<Child> start_until_evaluation(const std::string& run, int step) const {
    auto job = start(tiny(run, GetParam(), evaluated()));
    job->expect_soon("step_00000" + std::to_string(step - 1));  // which is saved
    usleep(20'000);
    return job;
  }
  /// Runs the rest and expects the same as `whole`.
  void expect_whole(const std::string& run) const {
    Words words = evaluated();
    words.emplace_back("--resume");
    const Result rest = train(run, GetParam(), words);
    ASSERT_EQ(rest.code, 0) << rest.err;
    EXPECT_EQ(numbers(run), numbers("whole"));
    EXPECT_EQ(std::filesystem::read_symlink(path(run + "/best")), std::filesystem::read_symlink(path("whole/best")));
    EXPECT_TRUE(tensors(folder() / run / "step_000004") == tensors(folder() / "whole/step_000004"));
  }
};

TEST_P(StopInEvaluation, LosesNothing) {
  ASSERT_EQ(train("whole", GetParam(), evaluated()).code, 0);
  for (const int step : {2, 4}) {
    const std::string stopped = "stopped" + std::to_string(step);
    const auto asked = start_until_evaluation(stopped, step);
    asked->signal(SIGINT);
    EXPECT_EQ(asked->wait(), 130) << asked->err();
    EXPECT_FALSE(numbers(stopped).back().contains("val_loss")) << "the evaluation was over before the signal";
    expect_whole(stopped);

    const std::string killed = "killed" + std::to_string(step);
    const auto job = start_until_evaluation(killed, step);
    for (const pid_t pid : job->living()) kill(pid, SIGKILL);
    job->wait();
    ASSERT_TRUE(job->all_gone(5));
    expect_whole(killed);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, StopInEvaluation, ::testing::Values(1, 2, 3));

/// It has nothing to save, and would otherwise wait for the time-out: 300 s.
TEST_F(StopTest, ARankThatWaitsForOthersEndsAtOnce) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const int port = free_port();
    const auto first = start_rank(tiny("run", 2), 0, 2, port);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const auto is_waiting = [&] {  // it serves the store of the job
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      const bool is_open = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
      close(fd);
      return is_open;
    };
    for (int i = 0; i < 200 && !is_waiting(); ++i) usleep(50'000);
    ASSERT_TRUE(is_waiting()) << first->err();
    first->signal(signal);
    EXPECT_EQ(first->wait(), 1000 + signal) << first->err();
    EXPECT_TRUE(first->all_gone(5));
  }
}

TEST_F(StopTest, ASecondSignalEndsAtOnce) {
  for (const int ranks : {1, 2}) {
    const std::string run = "run" + std::to_string(ranks);
    const auto job = start(tiny(run, ranks, slow()));
    job->expect_soon("batch  ");
    job->signal(SIGINT);
    if (ranks > 1) job->expect_soon("a second signal kills them");
    usleep(400'000);  // signals within a quarter of a second are one request
    job->signal(SIGINT);
    EXPECT_EQ(job->wait(), 130) << job->err();
    EXPECT_TRUE(job->all_gone(0));
    EXPECT_TRUE(log(run).empty()) << "the step was not cut short";
    EXPECT_FALSE(has_checkpoint(run));
  }
}

}  // namespace
}  // namespace caravan::stop_test
