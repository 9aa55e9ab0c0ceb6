// The data of a run: a preparation that takes longer than the ranks' time-out, is stopped, killed, or done twice at
// once; texts that are none; the cache.
#include <algorithm>
#include <csignal>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include "tests/command/command.h"

namespace caravan::data_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class DataTest : public CommandTest {
 protected:
  /// Training on a text that takes many times the ranks' time-out to prepare.
  Words big(const std::string& run, int ranks, int megabytes, const std::vector<std::string>& more = {}) const {
    if (!fs::exists(path("big.txt"))) {
      const std::string book = text_of(fs::path(CARAVAN_SOURCE_DIR) / "data/moby_dick.txt");
      std::string text;
      while (text.size() < static_cast<size_t>(megabytes) << 20) text += book;
      file("big.txt", text);
    }
    std::vector<std::string> overrides{"data.text=" + path("big.txt"), "data.tokenizer={train = 512}", "train.steps=2",
                                       "train.eval_batches=1", "comm.timeout_s=2.5"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return tiny(run, ranks, set(overrides));
  }

  std::vector<std::string> in_cache(const std::string& ending) const {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator at(path("cache"), error), end; !error && at != end; at.increment(error)) {
      if (at->path().extension() == ending) names.push_back(at->path().filename().string());
    }
    return names;
  }
  /// Waits until some rank writes tokens.
  void expect_tokenizing(const Child& job) const {
    const auto writes = [this] {
      const auto names = in_cache(".tmp");
      return std::any_of(names.begin(), names.end(),
                         [](const auto& name) { return name.find(".tokens.") != name.npos; });
    };
    for (int i = 0; i < 6000 && !writes(); ++i) {
      usleep(10'000);
      // Earlier, the job may not have the environment yet by which it is found.
      if (i > 500) {
        ASSERT_FALSE(job.living().empty());
      }
    }
    ASSERT_TRUE(writes());
  }
  Result run_with(const Words& environment, const Words& arguments) const {
    Words command{"env"};
    command.insert(command.end(), environment.begin(), environment.end());
    command.push_back(program());
    command.insert(command.end(), arguments.begin(), arguments.end());
    return run(command);
  }
};

TEST_F(DataTest, PreparationMayTakeLongerThanTheTimeOut) {
  const Result result = caravan(big("run", 3, 60));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("data      t"), HasSubstr(" % of "), HasSubstr("step 2/2")));
  EXPECT_EQ(in_cache(".tokens").size(), 2U);
  EXPECT_TRUE(in_cache(".tmp").empty());
  EXPECT_TRUE(in_cache(".lock").empty());
}

TEST_F(DataTest, ASignalStopsThePreparation) {
  for (const int ranks : {1, 2}) {
    for (const int signal : {SIGINT, SIGTERM}) {
      const auto job = start(big("run", ranks, 100));
      expect_tokenizing(*job);
      job->signal(signal);
      EXPECT_EQ(job->wait(), 130) << job->err();
      EXPECT_THAT(job->err(), HasSubstr("stopped on request while the data was being prepared"));
      EXPECT_TRUE(job->all_gone(0));
      EXPECT_TRUE(in_cache(".tmp").empty());
      EXPECT_TRUE(in_cache(".lock").empty());
      EXPECT_TRUE(in_cache(".tokens").empty()) << "it was over before the signal came";
    }
  }
}

TEST_F(DataTest, AKilledPreparationIsRepeated) {
  const auto job = start(big("run", 2, 20));
  expect_tokenizing(*job);
  kill(rank_process(*job, 0), SIGKILL);
  EXPECT_EQ(job->wait(), 4) << job->err();
  EXPECT_TRUE(job->all_gone(0));
  EXPECT_EQ(in_cache(".tmp").size(), 1U) << "it was over before the signal came";
  fs::remove_all(path("run"));
  const Result again = caravan(big("run", 2, 20));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_TRUE(in_cache(".tmp").empty());
  EXPECT_TRUE(in_cache(".lock").empty());
}

/// The first step does not wait for the whole text, and a run that is killed meanwhile can be resumed.
TEST_F(DataTest, AStreamedTextIsTokenizedDuringTraining) {
  const std::vector<std::string> endless{"data.streaming=true", "train.steps=1000000", "checkpoint.every=5"};
  const auto job = start(big("run", 2, 60, endless));
  job->expect_soon("saved  ");
  kill(rank_process(*job, 0), SIGKILL);
  EXPECT_EQ(job->wait(), 4) << job->err();
  EXPECT_TRUE(job->all_gone(0));
  const auto stop = std::to_string(log("run").back().at("step").get<int64_t>() + 20);
  Words again = big("run", 2, 60, endless);
  for (const std::string& word : {std::string("--resume"), std::string("--stop-after"), stop}) again.push_back(word);
  const Result resumed = caravan(again);
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, AllOf(HasSubstr("streamed: tokenized during training"), HasSubstr("step " + stop + "/")));
  EXPECT_TRUE(in_cache(".lock").empty());
  EXPECT_THAT(caravan({"data", "inspect", path("big.txt"), "--set", "data.streaming=true"}).out,
              AllOf(HasSubstr("big.txt: streamed"), HasSubstr("at most 4.0 MiB"), HasSubstr("sequence 0, number 0")));
}

TEST_F(DataTest, TwoJobsPrepareATextOnce) {
  const auto one = start(big("one", 2, 20));
  const auto two = start(big("two", 2, 20));
  EXPECT_EQ(one->wait(), 0) << one->err();
  EXPECT_EQ(two->wait(), 0) << two->err();
  EXPECT_EQ(in_cache(".tokens").size(), 2U);
  EXPECT_TRUE(in_cache(".tmp").empty());
  EXPECT_EQ(log("one").back().at("loss"), log("two").back().at("loss"));
}

TEST_F(DataTest, ASignalStopsAnEvaluation) {
  const auto job =
      start(tiny("run", 2,
                 set({"train.steps=1", "train.eval_batches=0", "data.text=" + path("text.txt"), "model.layers=12",
                      "model.width=512", "model.context=256", "train.global_batch=2", "checkpoint.every=1"})));
  job->expect_soon("batch  ");
  while (!fs::exists(path("run/train.log"))) usleep(10'000);
  job->signal(SIGTERM);
  EXPECT_EQ(job->wait(), 130) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("stopped on request after step 1"));
}

TEST_F(DataTest, OtherFilesThanTextAreRefused) {
  const auto refusal = [this](const std::string& text) {
    const Result result = train("refused", 2, set({"data.text=" + file("a file", text)}));
    EXPECT_EQ(result.code, 3);
    return result.err;
  };
  EXPECT_THAT(refusal("BZh91AY&SY"), AllOf(HasSubstr("is a bzip2 file"), HasSubstr("bzip2 -dc")));
  EXPECT_THAT(refusal("\x1f\x8b\x08 and more"), HasSubstr("is a damaged gzip file"));
  EXPECT_THAT(refusal("{\"txt\": \"a\"}\n{\"txt\": \"b\"}\n"),
              AllOf(HasSubstr("a file:1"), HasSubstr("has no field text, but txt")));
}

TEST_F(DataTest, PatternsFoldersAndCompressedLinesAreOneText) {
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += "{\"text\": \"document " + std::to_string(i) + "\"}\n";
  fs::create_directories(path("texts/deeper"));
  file("texts/deeper/lines.jsonl", lines);
  ASSERT_EQ(run({"gzip", path("texts/deeper/lines.jsonl")}).code, 0);
  fs::copy_file(path("text.txt"), path("texts/plain.txt"));
  const Result whole = train("whole", 2, set({"data.text=" + path("texts")}));
  ASSERT_EQ(whole.code, 0) << whole.err;
  const Result patterns =
      train("patterns", 2, set({"data.text=[\"" + path("texts/deep*") + "\", \"" + path("texts/*.txt") + "\"]"}));
  ASSERT_EQ(patterns.code, 0) << patterns.err;
  EXPECT_EQ(log("patterns").back().at("loss"), log("whole").back().at("loss"));
  const Result own =
      train("own", 2, set({"data.text=" + path("texts/*.txt"), "data.validation=" + path("texts/deeper")}));
  EXPECT_EQ(own.code, 0) << own.err;
  EXPECT_NE(log("own").back().at("val_loss"), log("whole").back().at("val_loss"));
  EXPECT_THAT(caravan({"data", "inspect", path("texts"), "--set", "data.tokenizer=bytes", "--samples", "0"}).out,
              HasSubstr("the last 0.1 of each file"));
}

/// Classes by name, and what is no target.
TEST_F(DataTest, RecordsAreShownAsTheirTaskHasThem) {
  const std::string records = file("records.jsonl",
                                   "{\"text\":\"ab\",\"other\":\"c\",\"label\":\"good\"}\n"
                                   "{\"text\":\"ab\",\"other\":\"c\",\"label\":\"bad\"}\n"
                                   "{\"text\":\"ab\",\"other\":\"c\",\"label\":\"bad\"}\n");
  const Result shown =
      caravan({"data", "inspect", records, "--set", "data.task=classify", "--set", "data.pair_field=other", "--set",
               "data.tokenizer=bytes", "--set", "model.context=4", "--samples", "2"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, AllOf(HasSubstr("classes     2: bad, good"), HasSubstr("1 targets"),
                               HasSubstr("position  document      type        id  token                     target")));
  EXPECT_THAT(shown.out,
              AllOf(HasSubstr("       1         0         0        98  \"b\"                       -"),
                    HasSubstr("       2         0         1        99  \"c\"                       0 (\"bad\")"),
                    HasSubstr("       2         0         1        99  \"c\"                       1 (\"good\")")));
}

/// Under torchrun and mpirun nobody sets CARAVAN_HOME.
TEST_F(DataTest, TheTextOfTheRepositoryIsFoundWithoutAVariable) {
  const Words inspect{"data", "inspect", "data/moby_dick.txt", "--set", "data.tokenizer=bytes", "--samples", "0"};
  const Result found = run_with({"-u", "CARAVAN_HOME"}, inspect);
  EXPECT_EQ(found.code, 0) << found.err;
  EXPECT_THAT(run_with({"CARAVAN_HOME=" + path("nowhere")}, inspect).err, HasSubstr("no such file"));
}

TEST_F(DataTest, AnUnreadableTextIsReported) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const std::string text = file("secret.txt", "secret");
  chmod(text.c_str(), 0);
  EXPECT_THAT(train("run", 1, set({"data.text=" + text})).err, AllOf(HasSubstr("read"), Not(HasSubstr("written"))));
}

TEST_F(DataTest, TheCacheIsListedLimitedAndCleared) {
  EXPECT_EQ(train("run", 1).code, 0);
  const Result list = caravan({"cache"});
  EXPECT_EQ(list.code, 0) << list.err;
  EXPECT_THAT(list.out, AllOf(HasSubstr(".tokens"), HasSubstr("2 files"), HasSubstr("limit 32.0 GiB")));
  EXPECT_EQ(caravan({"cache", "list"}).out, list.out);
  EXPECT_THAT(run_with({"CARAVAN_CACHE_BYTES=20G"}, {"cache", "size"}).out, HasSubstr("limit 20.0 GiB"));
  EXPECT_THAT(run_with({"CARAVAN_CACHE_BYTES=0"}, {"cache", "size"}).out, HasSubstr("no limit"));
  const Result wrong = run_with({"CARAVAN_CACHE_BYTES=many"}, {"cache", "size"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, AllOf(HasSubstr("CARAVAN_CACHE_BYTES: 'many' is not a size"), HasSubstr("20G")));

  // A run keeps the files that it uses, and the limit removes the rest.
  const Result other = run_with({"CARAVAN_CACHE_BYTES=1"},
                                tiny("other", 1, set({"data.text=" + file("b.txt", text_of(path("text.txt")) + "b")})));
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_EQ(in_cache(".tokens").size(), 2U);
  const Result clear = caravan({"cache", "clear"});
  EXPECT_THAT(clear.out, HasSubstr("removed 2 files"));
  EXPECT_TRUE(in_cache(".tokens").empty());
  EXPECT_THAT(caravan({"cache", "size"}).out, HasSubstr("0 files"));
}

/// In a world-writable folder, another user may have made the cache.
TEST_F(DataTest, ATemporaryCacheMustBelongToTheUser) {
  const Words environment{"-u", "HOME", "-u", "XDG_CACHE_HOME", "-u", "CARAVAN_CACHE", "TMPDIR=" + folder().string()};
  const std::string cache = path("caravan-" + std::to_string(getuid()));
  EXPECT_EQ(run_with(environment, {"cache", "size"}).code, 0);
  chmod(cache.c_str(), 0777);
  const Result open = run_with(environment, {"cache", "size"});
  EXPECT_EQ(open.code, 2);
  EXPECT_THAT(open.err, AllOf(HasSubstr(cache), HasSubstr("this user alone"), HasSubstr("CARAVAN_CACHE")));
  fs::remove(cache);
  fs::create_directory_symlink(folder(), cache);
  EXPECT_EQ(run_with(environment, {"cache", "size"}).code, 2);
}

TEST_F(DataTest, MemoryIsPlannedBeforeTheFirstStep) {
  const Result shown = caravan({"inspect", "--ranks", "2"});
  EXPECT_THAT(shown.out, AllOf(HasSubstr("micro_batch 6"), HasSubstr("chosen"), HasSubstr("activations")));
  EXPECT_EQ(train("run", 2).code, 0);
  EXPECT_THAT(text_of(path("run/recipe.toml")), HasSubstr("micro_batch = 6\n"));
  for (const char* command : {"inspect", "train"}) {
    const Result huge = caravan({command, "--set", "model.width=1048576", "--set", "data.text=" + path("text.txt"),
                                 "--set", "data.tokenizer=bytes", "--set", "model.heads=8"});
    EXPECT_EQ(huge.code, 5);
    EXPECT_THAT(huge.err, AllOf(HasSubstr("a rank needs about"), HasSubstr("lower model.layers")));
  }
}

}  // namespace
}  // namespace caravan::data_test
