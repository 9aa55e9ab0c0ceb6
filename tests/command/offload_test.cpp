// generate and embed with weights in host memory and on disk: the same text, bad input, and what Ctrl-C leaves.
#include <csignal>
#include <gmock/gmock.h>

#include "tests/command/command.h"

namespace caravan::offload_test {
namespace {

using ::testing::HasSubstr;

class OffloadCommandTest : public CommandTest {
 protected:
  OffloadCommandTest() {
    const Result trained = train("run", 1, set({"train.steps=10", "optimizer.lr=0.01"}));
    EXPECT_EQ(trained.code, 0) << trained.err;
  }

  Words generate(const Words& more) const {
    Words words{"generate", path("run"), "--tokens", "24", "--temperature", "1.2", "--prompt", "The whale"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Words on_disk() const { return {"--offload", "disk", "--disk-dirs", path("disk")}; }
  std::string out(const Words& words) const {
    const Result result = caravan(words);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  }
  void expect_refused(const Words& more, int code, const std::vector<std::string>& words) const {
    SCOPED_TRACE(::testing::PrintToString(more));
    const Result result = caravan(generate(more));
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_EQ(result.out, "");
    for (const std::string& word : words) EXPECT_THAT(result.err, HasSubstr(word));
    EXPECT_THAT(result.err, HasSubstr("do: "));
  }
  bool has_files_on_disk() const { return !std::filesystem::is_empty(folder() / "disk"); }
};

TEST_F(OffloadCommandTest, TheTextIsThatOfWeightsInMemory) {
  for (const Words& split : {Words{}, Words{"--ranks", "2"}, Words{"--ranks", "2", "--pp", "2"},
                             Words{"--precision", "bf16"}, Words{"--beams", "2", "--json"}}) {
    SCOPED_TRACE(::testing::PrintToString(split));
    Words words = generate(split);
    if (!split.empty() && split.front() == "--beams") std::erase(words, "--temperature"), std::erase(words, "1.2");
    const std::string wanted = out(words);
    for (const Words& tier : {Words{"--offload", "host"}, on_disk()}) {
      Words offloaded = words;
      offloaded.insert(offloaded.end(), tier.begin(), tier.end());
      EXPECT_EQ(out(offloaded), wanted);
    }
    EXPECT_FALSE(has_files_on_disk());
  }
  Words two = on_disk();
  two.back() += "," + path("other");
  EXPECT_EQ(out(generate(two)), out(generate({})));
  EXPECT_TRUE(std::filesystem::is_empty(folder() / "other"));
}

TEST_F(OffloadCommandTest, ADraftStaysInMemory) {
  Words draft{"--draft", path("run")};
  const std::string wanted = out(generate(draft));
  for (const std::string& word : on_disk()) draft.push_back(word);
  EXPECT_EQ(out(generate(draft)), wanted);
}

TEST_F(OffloadCommandTest, VectorsAreThoseOfWeightsInMemory) {
  Words words{"embed", path("run"), "--text", "The whale"};
  const std::string wanted = out(words);
  for (const std::string& word : on_disk()) words.push_back(word);
  EXPECT_EQ(out(words), wanted);
}

TEST_F(OffloadCommandTest, RefusesBadInput) {
  expect_refused({"--offload", "dsk"}, 2, {"--offload", "'dsk' is not one of none, host, disk", "nearest is 'disk'"});
  expect_refused({"--offload", "disk"}, 2, {"--offload: disk needs folders", "--disk-dirs DIR"});
  expect_refused({"--disk-dirs", path("disk")}, 2, {"--disk-dirs: names folders", "use --offload disk"});
  expect_refused({"--offload", "host", "--disk-dirs", path("disk")}, 2, {"the weights do not rest on disk"});
  expect_refused({"--offload", "disk", "--disk-dirs", ""}, 2, {"--disk-dirs", "must not be empty"});
  const Words missing{"--offload", "disk", "--disk-dirs", path("none/disk")};
  expect_refused(missing, 2, {"none is not a folder"});
  Words of_ranks = missing;
  of_ranks.insert(of_ranks.end(), {"--ranks", "2"});
  expect_refused(of_ranks, 2, {"none is not a folder"});
  expect_refused({"--offload", "disk", "--disk-dirs", file("file", "")}, 2, {"file: is not a folder"});
}

TEST_F(OffloadCommandTest, RefusesADiskThatCannotBeUsed) {
  const auto beside = [&](const std::string& mount, const std::string& ranks) {
    return run(with_own_mounts("cd " + folder().string() + "\nmkdir -p small && mount " + mount +
                               " small || exit 99\n'" + program() + "' generate run --tokens 2 --offload disk " +
                               "--disk-dirs small/tier --ranks " + ranks + "\ncode=$?\nls small/tier\nexit $code"));
  };
  for (const char* ranks : {"1", "2"}) {
    const Result full = beside("-t tmpfs -o size=64k none", ranks);
    EXPECT_EQ(full.code, 5) << full.err;
    EXPECT_THAT(full.err, HasSubstr("are needed there"));
    EXPECT_EQ(full.out, "");
    const Result locked = beside("-t tmpfs -o ro none", ranks);
    EXPECT_EQ(locked.code, 5) << locked.err;
    EXPECT_THAT(locked.err, HasSubstr("tier: cannot be made: Read-only file system"));
  }
}

TEST_F(OffloadCommandTest, CtrlCRemovesTheFiles) {
  for (const char* ranks : {"1", "2"}) {
    Words words{"generate", path("run"), "--tokens", "100000000", "--prompt", "The whale", "--ranks", ranks};
    for (const std::string& word : on_disk()) words.push_back(word);
    const auto job = start(words);
    job->expect_soon("The whale");
    EXPECT_TRUE(has_files_on_disk());
    job->signal(SIGINT);
    EXPECT_EQ(job->wait(), 130) << job->err();
    EXPECT_THAT(job->err(), HasSubstr("stopped on request"));
    EXPECT_TRUE(job->all_gone(1));
    EXPECT_FALSE(has_files_on_disk());
  }
}

}  // namespace
}  // namespace caravan::offload_test
