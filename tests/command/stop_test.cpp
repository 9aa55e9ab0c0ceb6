// Killed ranks, killed launchers, and Ctrl-C.
#include <csignal>
#include <gmock/gmock.h>

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

TEST_F(StopTest, ASignalSavesAndTheRunGoesOn) {
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

TEST_F(StopTest, ASecondSignalEndsAtOnce) {
  for (const int ranks : {1, 2}) {
    const std::string run = "run" + std::to_string(ranks);
    const auto job = start(tiny(run, ranks, slow()));
    job->expect_soon("batch  ");
    job->signal(SIGINT);
    if (ranks > 1) job->expect_soon("a second signal kills them");
    usleep(100'000);  // signals sent at once are merged
    job->signal(SIGINT);
    EXPECT_EQ(job->wait(), 130) << job->err();
    EXPECT_TRUE(job->all_gone(0));
    EXPECT_TRUE(log(run).empty()) << "the step was not cut short";
    EXPECT_FALSE(has_checkpoint(run));
  }
}

}  // namespace
}  // namespace caravan::stop_test
