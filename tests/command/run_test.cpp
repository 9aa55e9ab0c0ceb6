// `caravan run`: the user's programs as ranks.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include "tests/command/command.h"

namespace caravan::run_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RunTest : public CommandTest {
 protected:
  /// An executable script; its path.
  std::string script(const std::string& name, const std::string& text) const {
    const std::string path = file(name, "#!/bin/sh\n" + text);
    chmod(path.c_str(), 0755);
    return path;
  }
  /// Prints the arguments, one in each <>.
  std::string echo() const {
    return script("echo.sh", "for word; do printf '<%s>' \"$word\"; done; echo of $WORLD_SIZE");
  }
  std::string out_of(const Words& words) const {
    const Result result = caravan(words);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  }
};

TEST_F(RunTest, EachRankFindsItsPlace) {
  const std::string program = script(
      "place.sh", "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR ${MASTER_PORT:+port} at $0");
  const Result result = caravan({"run", "--ranks", "3", "--log-dir", path("logs"), program});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "0/3 0/3 127.0.0.1 port at " + program + "\n");
  EXPECT_EQ(text_of(path("logs/rank_2.log")), "2/3 2/3 127.0.0.1 port at " + program + "\n");
  EXPECT_EQ(out_of({"run", program, "--ranks", "1"}), "0/1 0/1 127.0.0.1 port at " + program + "\n");
}

TEST_F(RunTest, WordsBelongToTheProgramExceptRanks) {
  const std::string program = echo();
  EXPECT_EQ(out_of({"run", "--ranks", "2", program, "--lr", "3", "-x", "--help", "train"}),
            "<--lr><3><-x><--help><train>of 2\n");
  EXPECT_EQ(out_of({"run", program, "a b", "--ranks", "1", "--log-dir", "d"}), "<a b><--log-dir><d>of 1\n");
  EXPECT_EQ(out_of({"run", program, "--lr", "3", "--ranks=1"}), "<--lr><3>of 1\n");
  EXPECT_EQ(out_of({"run", "--ranks=1", program, "x", "--", "--ranks", "7", "--", ""}), "<x><--ranks><7><--><>of 1\n");
  EXPECT_EQ(out_of({"run", "--ranks", "1", "--", program, "--ranks", "7"}), "<--ranks><7>of 1\n");
}

TEST_F(RunTest, AProgramWithoutASlashIsLookedUpInPath) {
  echo();
  EXPECT_EQ(run({"env", "PATH=/nowhere:" + folder().string() + ":/usr/bin:/bin", program(), "run", "echo.sh", "train",
                 "--ranks", "1"})
                .out,
            "<train>of 1\n");
  EXPECT_EQ(
      run({"env", "-C", folder().string(), "PATH=:/usr/bin:/bin", program(), "run", "echo.sh", "--ranks", "1"}).out,
      "of 1\n");
  const Result here = run({"env", "-C", folder().string(), program(), "run", "echo.sh"});
  EXPECT_EQ(here.code, 2);
  EXPECT_THAT(here.err, AllOf(HasSubstr("[run] echo.sh: is not in PATH, but in this folder"),
                              HasSubstr("do: write caravan run ./echo.sh")));
}

TEST_F(RunTest, AnUnrunnableProgramSaysWhatToDo) {
  const std::string python = file("train.py", "print(1)\n"), plain = file("plain", "x");
  const std::string no_interpreter = file("old.sh", "#!/no/such/sh\n"), no_line = file("bare.sh", "echo 1\n");
  for (const std::string& script : {no_interpreter, no_line}) chmod(script.c_str(), 0755);
  const std::vector<std::pair<Words, std::vector<std::string>>> cases{
      {{}, {"names no program", "write caravan run PROGRAM [ARGS..]"}},
      {{"--ranks", "2"}, {"names no program"}},
      {{"--ranks", "2", "--"}, {"names no program"}},
      {{""}, {"names no program"}},
      {{path("none")}, {"none: is not there", "name an executable file"}},
      {{"no_such_program"}, {"no_such_program: is not in PATH", "./no_such_program"}},
      {{folder().string()}, {"is a folder"}},
      {{python}, {"train.py: is not executable", "do: write caravan run python3 " + python}},
      {{plain}, {"plain: is not executable", "do: chmod +x " + plain}},
      {{no_interpreter}, {"old.sh: cannot be run", "check the interpreter"}},
      {{no_line}, {"bare.sh: cannot be run", "begin it with the line of its interpreter"}},
      {{"--ranks", "0", "true"}, {"0 ranks cannot be started", "use 1 or more"}},
      {{"true", "--ranks", "-3"}, {"-3 ranks cannot be started"}},
      {{"true", "--ranks"}, {"--ranks"}},
      {{"true", "--ranks", "two"}, {"--ranks", "two"}},
      {{"--ranks", "1", "true", "--ranks", "2"}, {"--ranks"}},
      {{"true", "--ranks", "100000"}, {"100000 on one host"}},
      {{"--rank", "2", "true"}, {"--rank: not understood", "the nearest is '--ranks'"}},
      {{"--log-dir", "", "true"}, {"--log-dir", "must not be empty"}},
  };
  for (const auto& [words, parts] : cases) {
    Words all{"run"};
    all.insert(all.end(), words.begin(), words.end());
    const Result result = caravan(all);
    EXPECT_EQ(result.code, 2) << result.err;
    for (const std::string& part : parts) EXPECT_THAT(result.err, HasSubstr(part));
  }
  const Result axis = caravan({"train", "--tp", "2"});
  EXPECT_EQ(axis.code, 2) << axis.err;
  EXPECT_THAT(axis.err, HasSubstr("use --set mesh.tp=N, with --ranks N or more"));
}

TEST_F(RunTest, ARankThatFailsEndsTheJobWithItsCode) {
  const std::string program =
      script("fail.sh", "[ $RANK = 1 ] || exec sleep 600\necho the reason\necho of it >&2\nexit 3");
  const Result result = caravan({"run", program, "--ranks", "3"});
  EXPECT_EQ(result.code, 3);
  EXPECT_EQ(result.err,
            "caravan: rank 1 of 3 ended with exit code 3\n  the end of its log:\n  | the reason\n  | of it\n");
  EXPECT_EQ(caravan({"run", "sh", "-c", "exit 7", "--ranks", "1"}).code, 7);
}

TEST_F(RunTest, ASignalIsPassedOn) {
  // Rank 0 is ready when both have their traps.
  const std::string program =
      script("trap.sh", "trap 'echo stopped; exit 0' TERM\ntouch " + path("trap_") + "$RANK\nuntil [ -e " +
                            path("trap_1") + " ]; do sleep 0.01; done\necho ready\nsleep 600 & wait");
  const auto job = start({"run", program, "--ranks", "2"});
  job->expect_soon("ready");
  job->signal(SIGINT);
  EXPECT_EQ(job->wait(), 0);
  EXPECT_THAT(job->out(), HasSubstr("stopped"));
  EXPECT_THAT(job->err(),
              AllOf(HasSubstr("asking 2 ranks to stop; a second signal kills them"), Not(HasSubstr("checkpoint"))));
  EXPECT_TRUE(job->all_gone(0));  // nor the shells' sleeps
}

TEST_F(RunTest, RanksShareTheCores) {
  const std::string program = script("threads.sh", "echo $OMP_NUM_THREADS");
  EXPECT_EQ(out_of({"run", program, "--ranks", "32"}), "1\n");
  EXPECT_EQ(run({"env", "OMP_NUM_THREADS=5", CommandTest::program(), "run", program, "--ranks", "1"}).out, "5\n");
}

}  // namespace
}  // namespace caravan::run_test
