// Unusual streams, folders, limits and environment variables.
#include <gmock/gmock.h>

#include "tests/command/command.h"

namespace caravan::surroundings_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SurroundingsTest : public CommandTest {
 protected:
  /// `sh -c script` with the command and the words of tiny("run<ranks>", ranks) as "$@".
  Result shell(const std::string& script, int ranks, const Words& more = {}) const {
    Words words{"sh", "-c", script, "sh", program()};
    for (const std::string& word : tiny("run" + std::to_string(ranks), ranks, more)) words.push_back(word);
    return run(words);
  }
};

TEST_F(SurroundingsTest, ClosedStreamsDoNotCorruptFiles) {
  for (const int ranks : {1, 2}) {
    for (const std::string closed : {">&-", "2>&-", "<&- >&- 2>&-"}) {
      SCOPED_TRACE(closed);
      const std::string run = "run" + std::to_string(ranks);
      std::filesystem::remove_all(path(run));
      const Result result = shell("exec \"$@\" " + closed, ranks, set({"sample.tokens=3"}));
      EXPECT_EQ(result.code, 0) << result.err;
      // train.log would be the file that gets the descriptor of stdout.
      EXPECT_EQ(log(run).size(), 6U) << text_of(path(run + "/train.log"));
      const Result whole = caravan({"generate", path(run), "--tokens", "2"});
      EXPECT_EQ(whole.code, 0) << whole.err;
    }
  }
  EXPECT_EQ(run({"sh", "-c", "exec \"$@\" >&-", "sh", program(), "inspect"}).code, 0);
}

TEST_F(SurroundingsTest, AClosedOutputDoesNotEndTraining) {
  for (const int ranks : {1, 2}) {
    const Result result = shell("{ \"$@\"; echo code $? >&2; } | head -n 1", ranks, set({"sample.tokens=3"}));
    EXPECT_THAT(result.out, ::testing::StartsWith("run  "));
    EXPECT_THAT(result.err, ::testing::EndsWith("code 0\n"));
    const std::string lost = "caravan: standard output is lost (Broken pipe); the run continues";
    EXPECT_THAT(result.err, HasSubstr(lost));
    EXPECT_EQ(result.err.find(lost), result.err.rfind(lost)) << result.err;
    EXPECT_EQ(log("run" + std::to_string(ranks)).size(), 6U);
    EXPECT_TRUE(std::filesystem::exists(path("run" + std::to_string(ranks) + "/step_000006/manifest.json")));
  }
  const Result full = shell("exec \"$@\" > /dev/full", 2, set({"checkpoint.dir=" + path("full")}));
  EXPECT_EQ(full.code, 0) << full.err;
  EXPECT_THAT(full.err, HasSubstr("standard output is lost (No space left on device)"));
  // A command that only prints ends with its reader, as usual.
  const Result other = run({"sh", "-c", "\"$1\" inspect | head -n 1", "sh", program()});
  EXPECT_EQ(other.err, "");
}

TEST_F(SurroundingsTest, ALimitOfFileSizesIsAnError) {
  for (const int ranks : {1, 2}) {
    // 100 blocks of 512 bytes hold the tokens, but no checkpoint.
    const Result result = shell("ulimit -f 100; exec \"$@\"", ranks);
    EXPECT_EQ(result.code, 5) << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("File too large"), HasSubstr("do: ")));
  }
}

/// From less than libtorch needs up to enough: the run works, or ends with the exit code of a missing resource and a
/// message. With one arena of malloc the memory does not depend on timing: oneDNN 3.12 crashes if nothing but its code
/// finds no room.
TEST_F(SurroundingsTest, ALimitOfTheAddressSpaceIsAnError) {
  for (const int ranks : {1, 2}) {
    int num_refused = 0;
    for (int mib = 64; mib <= 640; mib += 48) {
      std::filesystem::remove_all(path("run" + std::to_string(ranks)));
      const Result result = shell(
          "export MALLOC_ARENA_MAX=1; ulimit -c 0; ulimit -v " + std::to_string(mib * 1024) + "; exec \"$@\"", ranks);
      if (result.code == 0) continue;
      ++num_refused;
      EXPECT_EQ(result.code, 5) << ranks << " ranks, " << mib << " MiB: " << result.err;
      EXPECT_THAT(result.err, HasSubstr("do: ")) << mib;
    }
    EXPECT_GT(num_refused, 0);
  }
}

TEST_F(SurroundingsTest, DataOfTheProgramIsFoundFromAnywhere) {
  Words words{"env", "-C", folder().string(), program(), "train", "--ranks", "1"};
  for (const std::string& word :
       set({"data.tokenizer=bytes", "model.layers=1", "model.width=32", "model.heads=2", "model.context=64",
            "sample.tokens=0", "train.steps=300", "train.eval_every=0"})) {
    words.push_back(word);
  }
  words.insert(words.end(), {"--stop-after", "2"});
  for (const char* name : {"default-1", "default-2"}) {
    const Result result = run(words);
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr(std::string("run       runs/") + name));
  }
  EXPECT_EQ(log("runs/default-2").size(), 2U);
  words.back() = "3";
  words.emplace_back("--resume");
  ASSERT_EQ(run(words).code, 0);
  EXPECT_EQ(log("runs/default-1").size(), 2U);
  EXPECT_EQ(log("runs/default-2").size(), 3U);
  const Result newest = run({"env", "-C", folder().string(), program(), "export", "--out", "out"});
  ASSERT_EQ(newest.code, 0) << newest.err;
  EXPECT_THAT(newest.out, HasSubstr("runs/default-2/step_000003 -> out"));
}

TEST_F(SurroundingsTest, WithoutHomeAndCacheVariables) {
  const Result result =
      shell("unset HOME CARAVAN_CACHE XDG_CACHE_HOME; export TMPDIR=" + folder().string() + "; exec \"$@\"", 2);
  EXPECT_EQ(result.code, 0) << result.err;
  const Result home = shell("unset CARAVAN_CACHE XDG_CACHE_HOME; export HOME=" + path("home") + "; exec \"$@\"", 1);
  EXPECT_EQ(home.code, 0) << home.err;
  EXPECT_FALSE(std::filesystem::is_empty(path("home/.cache/caravan")));
}

TEST_F(SurroundingsTest, AnImpossibleCache) {
  file("plain", "a file");
  const Result result = shell("export CARAVAN_CACHE=" + path("plain/cache") + "; exec \"$@\"", 2);
  EXPECT_EQ(result.code, 5) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("plain/cache"), HasSubstr("Not a directory"),
                                HasSubstr("do: set CARAVAN_CACHE to a folder")));
}

TEST_F(SurroundingsTest, AnImpossibleRunFolder) {
  file("plain", "a file");
  for (const char* name : {"plain", "plain/run"}) {
    const Result result = train(name, 2);
    EXPECT_TRUE(result.code == 3 || result.code == 5) << result.code << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("plain"), HasSubstr("do: ")));
  }
  const Result odd = train("a b/c'd \"\xc3\xa9/run", 2);
  EXPECT_EQ(odd.code, 0) << odd.err;
  EXPECT_EQ(log("a b/c'd \"\xc3\xa9/run").size(), 6U);
}

}  // namespace
}  // namespace caravan::surroundings_test
