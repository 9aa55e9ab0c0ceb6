// A run that was stopped, killed or interrupted, and resumed, is the run that was not.
#include <csignal>
#include <gmock/gmock.h>

#include "tests/command/command.h"

namespace caravan {
namespace {

using testing::HasSubstr;

class ResumeTest : public CommandTest {
 protected:
  /// Everything that a run leaves but times and memory.
  void expect_same_run(const std::string& got, const std::string& want, const std::string& checkpoint) const {
    EXPECT_TRUE(tensors(folder() / got / checkpoint) == tensors(folder() / want / checkpoint))
        << "parameters or moments differ";
    const auto state = [&](const std::string& run) {
      auto manifest = nlohmann::json::parse(text_of(folder() / run / checkpoint / "manifest.json"));
      for (const char* key : {"recipe", "hash"}) manifest.erase(key);  // the recipe names the run's folder
      return manifest;
    };
    EXPECT_EQ(state(got), state(want));
    expect_same_log(got, want);
  }

  void expect_same_log(const std::string& got, const std::string& want) const {
    const auto lines = [&](const std::string& run) {
      auto all = log(run);
      for (auto& line : all) {
        for (const char* key :
             {"step_ms", "tokens_per_second", "comm_ms", "peak_memory_bytes", "model_flops_per_second"})
          line.erase(key);
      }
      return all;
    };
    EXPECT_EQ(lines(got), lines(want));
  }

  static std::vector<std::string> also(std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

using Overrides = std::vector<std::string>;
class StopAfter : public ResumeTest, public testing::WithParamInterface<Overrides> {};

TEST_P(StopAfter, ThenResumeIsBitEqual) {
  const Words more = set(GetParam());
  ASSERT_EQ(train("whole", 2, more).code, 0);
  const Result half = train("halves", 2, also(more, {"--stop-after", "3"}));
  ASSERT_EQ(half.code, 0) << half.err;
  EXPECT_EQ(log("halves").size(), 3U);
  EXPECT_FALSE(std::filesystem::exists(path("halves/step_000006")));
  const Result rest = train("halves", 2, also(more, {"--resume"}));
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_THAT(rest.out, HasSubstr("resumed after step 3"));
  expect_same_run("halves", "whole", "step_000006");
}

INSTANTIATE_TEST_SUITE_P(
    All, StopAfter,
    testing::Values(Overrides{"model.dropout=0.1"}, Overrides{"comm.backend=thread", "train.micro_batch=2"},
                    Overrides{"precision.compute=bf16", "optimizer.kind=sgd", "optimizer.momentum=0.9"},
                    Overrides{"data.tokenizer={train = 300}", "model.kind=llama"}));

TEST_F(ResumeTest, AfterAKillOfTheWholeJobIsBitEqual) {
  const Words more = set({"train.steps=60", "checkpoint.every=5", "checkpoint.keep=2"});
  ASSERT_EQ(train("whole", 2, more).code, 0);
  const auto job = start(tiny("killed", 2, more));
  job->expect_soon("step 12/60");
  for (const pid_t pid : job->living()) kill(pid, SIGKILL);
  job->wait();
  ASSERT_TRUE(job->all_gone(5));
  ASSERT_FALSE(std::filesystem::exists(path("killed/step_000060"))) << "it was not killed in time";
  const Result rest = train("killed", 2, also(more, {"--resume"}));
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_THAT(rest.out, HasSubstr("resumed after step "));
  expect_same_run("killed", "whole", "step_000060");
}

TEST_F(ResumeTest, OnOtherRanksIsEqualWithinRounding) {
  ASSERT_EQ(train("whole", 2).code, 0);
  for (const auto& [before, after] : {std::pair{2, 3}, std::pair{3, 1}, std::pair{1, 4}}) {
    const std::string run = "run" + std::to_string(before);
    ASSERT_EQ(train(run, before, {"--stop-after", "3"}).code, 0);
    const Result rest = train(run, after, {"--resume"});
    ASSERT_EQ(rest.code, 0) << rest.err;
    const auto got = log(run);
    const auto want = log("whole");
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      for (const char* key : {"loss", "grad_norm"}) {
        const double reference = want[i].at(key);
        EXPECT_NEAR(got[i].at(key), reference, 1e-5 * reference) << run << ", " << key << " of step " << i + 1;
      }
    }
  }
}

TEST_F(ResumeTest, AFinishedRunIsANoOpAndMoreStepsGoOn) {
  ASSERT_EQ(train("run", 1).code, 0);
  const auto before = text_of(path("run/train.log"));
  const Result again = train("run", 1, {"--resume"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(text_of(path("run/train.log")), before);
  const Result more = train("run", 1, also({"--resume"}, set({"train.steps=8"})));
  EXPECT_EQ(more.code, 0) << more.err;
  EXPECT_EQ(log("run").size(), 8U);
  const Result fewer = train("run", 1, also({"--resume"}, set({"train.steps=5"})));
  EXPECT_EQ(fewer.code, 2) << fewer.err;
  EXPECT_THAT(fewer.err, HasSubstr("train.steps: 5 steps, but 8 are done already"));
}

TEST_F(ResumeTest, ThroughALinkToTheRunFolder) {
  ASSERT_EQ(train("run", 1, {"--stop-after", "3"}).code, 0);
  std::filesystem::create_symlink("run", path("link"));
  const Result rest = train("link", 1, {"--resume"});
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_TRUE(std::filesystem::exists(path("run/step_000006")));
}

TEST_F(ResumeTest, ACheckpointWithoutManifestCountsAsNone) {
  ASSERT_EQ(train("run", 1, set({"checkpoint.every=3"})).code, 0);
  std::filesystem::remove(path("run/step_000006/manifest.json"));
  const Result rest = train("run", 1, {"--resume"});
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_THAT(rest.out, HasSubstr("resumed after step 3"));
  EXPECT_EQ(log("run").size(), 6U);
}

}  // namespace
}  // namespace caravan
