// A run that was stopped, killed or interrupted and then resumed equals an uninterrupted run.
#include <algorithm>
#include <array>
#include <csignal>
#include <gmock/gmock.h>
#include <thread>

#include "tests/command/command.h"

namespace caravan::resume_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ResumeTest : public CommandTest {
 protected:
  /// Compares everything that a run writes, except times and memory.
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
             {"step_ms", "tokens_per_second", "comm_ms", "save_ms", "peak_memory_bytes", "predicted_memory_bytes",
              "predicted_resident_bytes", "predicted", "tiers", "model_flops_per_second", "slowdown", "time"})
          line.erase(key);
      }
      return all;
    };
    const auto got_lines = lines(got), want_lines = lines(want);
    ASSERT_EQ(got_lines.size(), want_lines.size());
    for (size_t i = 0; i < got_lines.size(); ++i) EXPECT_EQ(got_lines[i], want_lines[i]);
  }

  static std::vector<std::string> also(std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

using Overrides = std::vector<std::string>;
class StopAfter : public ResumeTest, public ::testing::WithParamInterface<Overrides> {};

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
    ::testing::Values(Overrides{"model.dropout=0.1"}, Overrides{"comm.backend=thread", "train.micro_batch=2"},
                      Overrides{"precision.compute=bf16", "optimizer.kind=sgd", "optimizer.momentum=0.9"},
                      Overrides{"optimizer.kind=lion"}, Overrides{"optimizer.kind=muon", "optimizer.skip_spikes=5"},
                      Overrides{"optimizer.kind=adafactor", "optimizer.update_momentum=0.9"},
                      Overrides{"data.tokenizer={train = 300}", "model.kind=llama"}));

/// Packed documents of two sources, one of them JSON lines, several epochs of each. Resumed in the middle.
TEST_F(ResumeTest, OfAMixtureIsBitEqualAndTheSameOnAnyRanks) {
  std::string lines;
  for (int i = 0; i < 60; ++i) lines += nlohmann::json{{"body", "document " + std::to_string(i * i * i)}}.dump() + "\n";
  file("lines.jsonl", lines);
  const auto mixed = [&](const std::string& run, int ranks, const std::vector<std::string>& more = {}) {
    Words words = tiny(run, ranks);
    const auto text = std::ranges::find_if(words, [](const auto& word) { return word.starts_with("data.text="); });
    words.erase(text - 1, text + 1);
    const Words own = set({"data.sources=[{path = \"" + path("*.jsonl") + "\", weight = 0.4}, {path = \"" +
                               path("text.txt") + "\", weight = 0.6}]",
                           "data.field=body", "data.tokenizer={train = 300}", "data.pack=documents",
                           "data.validation_fraction=0.2", "train.steps=9"});
    words.insert(words.end(), own.begin(), own.end());
    words.insert(words.end(), more.begin(), more.end());
    return caravan(words);
  };
  const Result whole = mixed("whole", 2);
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(whole.out, HasSubstr("43 of 108 sequences"));
  ASSERT_EQ(mixed("halves", 2, {"--stop-after", "4"}).code, 0);
  const Result rest = mixed("halves", 2, {"--resume"});
  ASSERT_EQ(rest.code, 0) << rest.err;
  expect_same_run("halves", "whole", "step_000009");
  for (const int ranks : {1, 3}) {
    const std::string run = "on" + std::to_string(ranks);
    ASSERT_EQ(mixed(run, ranks).code, 0);
    for (size_t i = 0; i < 9; ++i) {  // rounding: another number of partial sums
      EXPECT_NEAR(log(run)[i].at("loss").get<double>(), log("whole")[i].at("loss").get<double>(), 1e-5) << ranks;
    }
  }
  const Result other =
      mixed("halves", 2, {"--resume", "--set", "data.validation_fraction=0.3", "--set", "train.steps=10"});
  EXPECT_EQ(other.code, 2) << other.err;
  EXPECT_THAT(other.err, HasSubstr("differs from the text"));
}

TEST_F(ResumeTest, TheBestCheckpointIsKept) {
  // The learning rate is so high in the end that the loss rises again.
  const Words more = set({"train.steps=12", "train.eval_every=2", "checkpoint.every=3", "checkpoint.keep=1",
                          "checkpoint.keep_best=true", "optimizer.schedule=constant", "optimizer.lr=0.05",
                          "optimizer.warmup_steps=12"});
  const auto best_of = [&](const std::string& run) {
    std::pair<double, int64_t> best{1e9, 0};
    for (const auto& line : log(run)) {
      if (line.contains("val_loss"))
        best = std::min(best, {line["val_loss"].get<double>(), line["step"].get<int64_t>()});
    }
    char name[32];
    std::snprintf(name, sizeof name, "step_%06d", static_cast<int>(best.second));
    return std::string(name);
  };
  ASSERT_EQ(train("whole", 2, more).code, 0);
  const std::string best = best_of("whole");
  EXPECT_NE(best, "step_000012") << "the test needs a best step before the last";
  EXPECT_EQ(std::filesystem::read_symlink(path("whole/best")), best);
  EXPECT_TRUE(std::filesystem::exists(path("whole/step_000012/manifest.json")));
  size_t checkpoints = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path("whole"))) {
    checkpoints += entry.path().filename().string().starts_with("step_") ? 1 : 0;
  }
  EXPECT_EQ(checkpoints, 2U);
  EXPECT_EQ(caravan({"generate", path("whole/best"), "--tokens", "2"}).code, 0);
  ASSERT_EQ(train("halves", 2, also(more, {"--stop-after", "10"})).code, 0);
  ASSERT_EQ(train("halves", 2, also(more, {"--resume"})).code, 0);
  EXPECT_EQ(std::filesystem::read_symlink(path("halves/best")), best) << "known again after a resume";
}

TEST_F(ResumeTest, AfterAKillOfTheWholeJobIsBitEqual) {
  const Words more = set({"train.steps=300", "checkpoint.every=5", "checkpoint.keep=2"});
  ASSERT_EQ(train("whole", 2, more).code, 0);
  const auto job = start(tiny("killed", 2, more));
  job->expect_soon("step 12/300");
  for (const pid_t pid : job->living()) kill(pid, SIGKILL);
  job->wait();
  ASSERT_TRUE(job->all_gone(5));
  ASSERT_FALSE(std::filesystem::exists(path("killed/step_000300"))) << "it was not killed in time";
  const Result rest = train("killed", 2, also(more, {"--resume"}));
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_THAT(rest.out, HasSubstr("resumed after step "));
  expect_same_run("killed", "whole", "step_000300");
}

/// With the residuals of a hook, and with shards: the files of each rank equal those of a run that saves synchronously.
TEST_F(ResumeTest, FromACheckpointOfTheBackgroundIsBitEqual) {
  for (const Overrides& how : {Overrides{"data_parallel.hook=topk"}, Overrides{"data_parallel.technique=zero3"}}) {
    const std::string name = how.front();
    Overrides keys = how;
    keys.insert(keys.end(), {"checkpoint.every=1", "checkpoint.keep=0"});
    const Words more = set(keys);
    ASSERT_EQ(train("whole " + name, 3, more).code, 0);
    const Words later = also(more, set({"checkpoint.async=true"}));
    ASSERT_EQ(train("halves " + name, 3, also(later, {"--stop-after", "3"})).code, 0);
    const Result rest = train("halves " + name, 3, also(later, {"--resume-from", "step_000002"}));
    ASSERT_EQ(rest.code, 0) << rest.err;
    for (const char* step : {"step_000002", "step_000004", "step_000006"}) {
      for (const char* rank : {"/rank_00000", "/rank_00001", "/rank_00002"}) {
        const std::string file = std::string(step) + rank + ".safetensors";
        EXPECT_TRUE(text_of(folder() / ("halves " + name) / file) == text_of(folder() / ("whole " + name) / file))
            << name << ": " << file;
      }
    }
    expect_same_log("halves " + name, "whole " + name);
  }
}

TEST_F(ResumeTest, AfterAKillOfARankThatWritesInTheBackground) {
  const Words more = set({"train.steps=300", "checkpoint.every=5", "checkpoint.async=true"});
  ASSERT_EQ(train("whole", 2, more).code, 0);
  const auto job = start(tiny("killed", 2, more));
  job->expect_soon("step_000005");
  const auto is_in_flight = [&] {
    for (const auto& entry : std::filesystem::directory_iterator(path("killed"))) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(".step_") && name.ends_with(".tmp")) return true;
    }
    return false;
  };
  while (!is_in_flight() && !std::filesystem::exists(path("killed/step_000300"))) std::this_thread::yield();
  kill(rank_process(*job, 1), SIGKILL);
  EXPECT_NE(job->wait(), 0);
  ASSERT_FALSE(std::filesystem::exists(path("killed/step_000300"))) << "it was not killed in time";
  const Result rest = train("killed", 2, also(more, {"--resume"}));
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_THAT(rest.out, HasSubstr("resumed after step "));
  EXPECT_FALSE(is_in_flight()) << "the unfinished folder is still there";
  expect_same_run("killed", "whole", "step_000300");
}

TEST_F(ResumeTest, OnOtherRanksIsEqualWithinRounding) {
  ASSERT_EQ(train("whole", 2).code, 0);
  for (const auto& [before, after] : {std::pair{2, 3}, std::pair{3, 1}, std::pair{1, 4}}) {
    const std::string run = "run" + std::to_string(before);
    ASSERT_EQ(train(run, before, {"--stop-after", "3"}).code, 0);
    const Result rest = train(run, after, {"--resume"});
    ASSERT_EQ(rest.code, 0) << rest.err;
    auto got = log(run);
    const auto want = log("whole");
    // The micro-batch of 3 ranks, 4 sequences, divides the 12 of one rank. Those of the others do not.
    const bool is_kept = before == 3;
    EXPECT_EQ(rest.out.find("note      train.micro_batch is") == std::string::npos, is_kept) << rest.out;
    EXPECT_EQ(std::erase_if(got, [](const auto& line) { return line.contains("changed"); }), is_kept ? 0U : 1U);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      for (const char* key : {"loss", "grad_norm"}) {
        const double reference = want[i].at(key);
        EXPECT_NEAR(got[i].at(key), reference, 1e-5 * reference) << run << ", " << key << " of step " << i + 1;
      }
    }
  }
}

TEST_F(ResumeTest, AFinishedRunIsANoOpAndMoreStepsContinue) {
  ASSERT_EQ(train("run", 1).code, 0);
  const auto before = text_of(path("run/train.log"));
  const Result again = train("run", 1, {"--resume"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("note      the run is complete (step 6 of 6); to continue: --resume --set "
                                   "train.steps=M with M above 6\n"));
  EXPECT_EQ(text_of(path("run/train.log")), before);
  const Result more = train("run", 1, also({"--resume"}, set({"train.steps=8"})));
  EXPECT_EQ(more.code, 0) << more.err;
  const auto lines = log("run");
  ASSERT_EQ(lines.size(), 9U);
  EXPECT_EQ(lines[6].at("changed").at("train.steps"), (nlohmann::json{{"before", "6"}, {"now", "8"}}));
  EXPECT_EQ(lines[8].at("step"), 8);
  const Result fewer = train("run", 1, also({"--resume"}, set({"train.steps=5"})));
  EXPECT_EQ(fewer.code, 2) << fewer.err;
  EXPECT_THAT(fewer.err, HasSubstr("train.steps: 5 steps, but 8 are done already"));
}

TEST_F(ResumeTest, ThroughALinkToTheRunFolder) {
  ASSERT_EQ(train("whole", 1).code, 0);
  ASSERT_EQ(train("run", 1, {"--stop-after", "3"}).code, 0);
  std::filesystem::create_symlink("run", path("link"));
  const Result rest = train("link", 1, {"--resume"});
  EXPECT_EQ(rest.code, 0) << rest.err;
  expect_same_run("run", "whole", "step_000006");
}

TEST_F(ResumeTest, ACheckpointWithoutManifestCountsAsNone) {
  ASSERT_EQ(train("whole", 1, set({"checkpoint.every=3"})).code, 0);
  ASSERT_EQ(train("run", 1, set({"checkpoint.every=3"})).code, 0);
  std::filesystem::remove(path("run/step_000006/manifest.json"));
  const Result rest = train("run", 1, also({"--resume"}, set({"checkpoint.every=3"})));
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_THAT(rest.out, HasSubstr("resumed after step 3"));
  expect_same_run("run", "whole", "step_000006");
}

TEST_F(ResumeTest, ADamagedCheckpointIsNamedAndAnEarlierOneIsUsed) {
  const Words more = set({"checkpoint.every=2"});
  ASSERT_EQ(train("whole", 2, more).code, 0);
  ASSERT_EQ(train("run", 2, more).code, 0);
  file("run/step_000006/rank_00001.safetensors", "damaged");
  const Result damaged = train("run", 2, also(more, {"--resume"}));
  EXPECT_EQ(damaged.code, 3) << damaged.err;
  EXPECT_THAT(damaged.err, AllOf(HasSubstr("step_000006"), HasSubstr("--resume-from step_000004")));
  const Result rest = train("run", 2, also(more, {"--resume-from", "step_000004"}));
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_THAT(rest.out, AllOf(HasSubstr("resumed after step 4"), HasSubstr("step_000006.abandoned")));
  expect_same_run("run", "whole", "step_000006");
}

TEST_F(ResumeTest, OnOtherCoresIsBitEqual) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "needs two cores";
  // Big enough to use both threads, which changes the order of sums.
  const Words more = set({"comm.threads_per_rank=0", "model.width=256", "model.context=64", "train.steps=4"});
  ASSERT_EQ(train("whole", 1, more).code, 0);
  ASSERT_EQ(train("run", 1, also(more, {"--stop-after", "2"})).code, 0);
  Words pinned{"taskset", "-c", "0", program()};
  for (const std::string& word : tiny("run", 1, also(more, {"--resume"}))) pinned.push_back(word);
  const Result rest = run(pinned);
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_THAT(rest.out, HasSubstr("threads per rank, as in the checkpoint"));
  expect_same_run("run", "whole", "step_000004");
}

TEST_F(ResumeTest, ARunInProgressIsRefusedButMayBeRead) {
  const Words more = set({"train.steps=1000000", "train.eval_every=0", "checkpoint.every=1", "checkpoint.keep=1"});
  const auto running = start(tiny("run", 2, more));
  running->expect_soon("saved ");
  const auto owner = HasSubstr("is in use by another run");
  const Result again = train("run", 2, also(more, {"--resume"}));
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err,
              AllOf(owner, HasSubstr("host "), HasSubstr("process " + std::to_string(rank_process(*running, 0)))));
  const Result second = train("run", 2, more);
  EXPECT_EQ(second.code, 2);
  EXPECT_THAT(second.err, owner);
  for (const Words& words : {Words{"generate", path("run"), "--tokens", "2", "--prompt", "a"},
                             Words{"export", path("run"), "--out", path("exported")}}) {
    const Result read = caravan(words);
    EXPECT_EQ(read.code, 0) << read.err;
  }
  running->signal(SIGTERM);
  EXPECT_EQ(running->wait(), 130) << running->err();
}

/// Two runs start at the same time in the same folder.
TEST_F(ResumeTest, OneOfTwoRunsGetsTheFolder) {
  const Words words = tiny("run", 1, set({"train.steps=20"}));
  for (int round = 0; round < 3; ++round) {
    const auto first = start(words);
    const auto second = start(words);
    std::vector<int> codes{first->wait(), second->wait()};
    std::sort(codes.begin(), codes.end());
    EXPECT_EQ(codes, (std::vector<int>{0, 2})) << first->err() << second->err();
    EXPECT_EQ(log("run").size(), 20U);
    std::filesystem::remove_all(path("run"));
  }
}

// ---- ranks started by hand ----

class ByHand : public ResumeTest {
 protected:
  /// Starts two ranks, the second one with `more` arguments. Both must exit with `code` and print `message`.
  void expect_refused(const Words& all, const Words& more, int code, const std::vector<std::string>& message) const {
    const auto results = by_hand({tiny("run", 2, all), tiny("run", 2, also(all, more))});
    for (size_t rank = 0; rank < results.size(); ++rank) {
      EXPECT_EQ(results[rank].code, code) << "rank " << rank << ": " << results[rank].err;
      for (const std::string& part : message) EXPECT_THAT(results[rank].err, HasSubstr(part)) << "rank " << rank;
      EXPECT_THAT(results[rank].out, Not(HasSubstr("step 1"))) << "rank " << rank;
    }
  }
};

TEST_F(ByHand, RanksThatAgreeTrain) {
  const auto results = by_hand({tiny("run", 2), tiny("run", 2)});
  for (const Result& result : results) EXPECT_EQ(result.code, 0) << result.err;
  ASSERT_EQ(train("launched", 2).code, 0);
  expect_same_run("run", "launched", "step_000006");
}

TEST_F(ByHand, RanksWithAnotherRecipeEndBeforeTheFirstStep) {
  for (const auto& [key, value, before] : std::vector<std::array<std::string, 3>>{
           {"optimizer.lr", "0.5", "0.003"},
           {"train.seed", "4", "1"},
           {"model.layers", "3", "2"},
           {"model.context", "16", "32"},
           {"train.global_batch", "13", "12"},
           {"precision.compute", "\"bf16\"", "\"fp32\""},
           {"comm.backend", "\"gloo\"", "\"auto\""},
           {"checkpoint.dir", "\"" + path("other") + "\"", "\"" + path("run") + "\""}}) {
    expect_refused({}, set({key + "=" + value}), 2,
                   {key + ": is " + before + " on rank 0 and " + value + " on rank 1"});
  }
  expect_refused({}, {"--stop-after", "3"}, 2, {"--stop-after: is not given on rank 0 and 3 on rank 1"});
  expect_refused({"--dump", path("dump")}, {"--dump-steps", "1"}, 2, {"--dump-steps: is 0 on rank 0 and 1 on rank 1"});
  expect_refused({"--trace", path("trace")}, {"--trace-steps", "1"}, 2,
                 {"--trace-steps: is not given on rank 0 and 1-1 on rank 1"});
  EXPECT_FALSE(std::filesystem::exists(path("run")));
  ASSERT_EQ(train("run", 2, {"--stop-after", "3"}).code, 0);
  expect_refused({}, {"--resume"}, 2, {"--resume: is not given on rank 0 and given on rank 1"});
}

TEST_F(ByHand, RanksWithAnotherTableOfAlgorithmsEndBeforeTheFirstStep) {
  const std::string table = file("table.json", R"({"format": "caravan selection table 1", "rules": [
    {"backend": "gloo", "verb": "all_reduce", "algorithm": "ring"}]})");
  expect_refused(set({"comm.backend=gloo"}), set({"comm.algorithms=" + table}), 2,
                 {"comm.algorithms, content: is built in on rank 0"});
}

TEST_F(ByHand, RanksWithAnotherTextEndBeforeTheFirstStep) {
  std::string other = text_of(path("text.txt"));
  other[100] = '#';
  expect_refused({}, set({"data.text=" + file("other.txt", other)}), 3, {"data.text, training part", "on rank 0"});
}

}  // namespace
}  // namespace caravan::resume_test
