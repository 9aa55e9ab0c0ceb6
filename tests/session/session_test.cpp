// Session, in a program that `caravan run` and others start.
#include <gmock/gmock.h>

#include "caravan/base/system/cores.h"
#include "tests/command/command.h"

namespace caravan::session_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class SessionTest : public CommandTest {
 protected:
  Result on(int ranks, const Words& words) const {
    Words all{"run", "--ranks", std::to_string(ranks), "--log-dir", path("logs"), CARAVAN_SESSION_PROGRAM};
    all.insert(all.end(), words.begin(), words.end());
    return caravan(all);
  }
};

TEST_F(SessionTest, EachRankFindsItsPlace) {
  const Result two = on(2, {"threads=1"});
  EXPECT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(two.out, "rank 0 of 2 dp=0/2: cpu, seed 1, random equal, threads set 1, main\n");
  const Result six = on(6, {"axes=pp:1,dp:0,tp:2", "threads=1", "seed=7", "backend=gloo"});
  EXPECT_EQ(six.code, 0) << six.err;
  EXPECT_EQ(text_of(path("logs/rank_5.log")),
            "rank 5 of 6 pp=0/1 dp=2/3 tp=1/2: cpu, seed 7, random equal, threads set 1\n");
}

/// Its mesh takes the axes that a pipeline adds. 6v + 4 for inputs of 1 and 2.
TEST_F(SessionTest, ItsMeshCanBeSplitIntoStages) {
  const Result two = on(2, {"axes=pp:2", "threads=1"});
  EXPECT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(two.out, "rank 0 of 2 stages: 26\n");
}

TEST_F(SessionTest, OneRankNeedsNoLauncher) {
  const int cores = num_usable_cores();
  const Result alone = run({CARAVAN_SESSION_PROGRAM});
  EXPECT_EQ(alone.code, 0) << alone.err;
  const std::string text =
      "rank 0 of 1 dp=0/1: cpu, seed 1, random equal, threads set " + std::to_string(cores) + ", main\n";
  EXPECT_EQ(alone.out, text);
  EXPECT_EQ(on(1, {}).out, text);
}

TEST_F(SessionTest, DifferentOptionsAreNamedWithBothValues) {
  const std::vector<std::pair<Words, std::string>> cases{
      {{"1:seed=2"}, "[session] seed: is 1 on rank 0 and 2 on rank 1"},
      {{"1:backend=gloo"}, "[session] backend: is auto on rank 0 and gloo on rank 1"},
      {{"1:axes=tp:0"}, "[session] axes: is dp=0 on rank 0 and tp=0 on rank 1"},
      {{"1:timeout_s=20"}, "[session] timeout_s: is 300 on rank 0 and 20 on rank 1"}};
  for (const auto& [words, text] : cases) {
    const Result result = on(3, words);
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, AllOf(HasSubstr(text), HasSubstr("do: give every rank the same SessionOptions")));
  }
  EXPECT_EQ(on(2, {"threads=1", "1:threads=2"}).code, 0);  // hosts may differ
}

TEST_F(SessionTest, ImpossibleOptionsNameWhatWorks) {
  const std::vector<std::pair<Words, std::vector<std::string>>> cases{
      {{"axes=dp:0,tp:2"}, {"[session] axes dp=0 tp=2: 3 ranks are not a multiple of 2", "start 4 ranks", "{1, 3}"}},
      {{"axes=dp:2,tp:2"}, {"the sizes multiply to 4, the world has 3 ranks", "start 4 ranks"}},
      {{"axes=dp:0,tp:0"}, {"dp and tp both take the rest", "give a size to all axes but one"}},
      {{"axes=dp:0,tp:-2"}, {"axis tp has size -2"}},
      {{"axes=dp:3,dp:1"}, {"two axes are named dp"}},
      {{"backend=gluu"}, {"there is no such back-end", "choose gloo"}},
      {{"threads=-1"}, {"[session] threads: -1 is not a number of threads", "use 1 or more, or 0"}},
      {{"timeout_s=0"}, {"[session] timeout_s: 0 is not a time-out"}}};
  for (const auto& [words, parts] : cases) {
    const Result result = on(3, words);
    EXPECT_EQ(result.code, 2);
    for (const std::string& part : parts) EXPECT_THAT(result.err, HasSubstr(part));
  }
}

TEST_F(SessionTest, ARankThatDoesNotComeIsNamed) {
  const Result alone =
      run({"env", "RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
           "MASTER_PORT=" + std::to_string(20000 + getpid() % 10000), CARAVAN_SESSION_PROGRAM, "timeout_s=0.5"});
  EXPECT_EQ(alone.code, 4) << alone.err;
  EXPECT_THAT(alone.err, HasSubstr("rank 1 of 2"));
}

/// Whole, once, with its rank, and not the errors of the ranks that lost it.
TEST_F(SessionTest, AnExceptionOfOneRankIsReported) {
  const std::vector<std::tuple<std::string, std::string, int>> cases{
      {"runtime", "rank 1 of 3: [program] the third\nline of three", 1},
      {"torch", "rank 1 of 3: [torch] shape '[3]' is invalid for input of size 2", 1},
      {"number", "rank 1 of 3: [program] an exception that is not derived from std::exception", 1},
      {"memory", "rank 1 of 3: [program] out of memory", 5}};
  for (const auto& [kind, text, code] : cases) {
    const Result result = on(3, {"threads=1", "1:throws=" + kind});
    EXPECT_EQ(result.code, code) << kind;
    const size_t first = result.err.find(text);
    ASSERT_NE(first, std::string::npos) << result.err;
    EXPECT_EQ(result.err.find(text, first + 1), std::string::npos) << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("frame #"))) << "no stack of C++";
  }
}

/// Also when time is up somewhere in the search, which is not at the same moment on both.
TEST_F(SessionTest, AllRanksGetTheSamePlan) {
  const Result two = on(2, {"plans=4", "threads=1"});
  EXPECT_EQ(two.code, 0) << two.err;
  EXPECT_THAT(two.out, AllOf(HasSubstr("4 units, 8 rows a step"), HasSubstr("parallelize(net, session")));
  EXPECT_EQ(text_of(path("logs/rank_1.log")), two.out);
  const Result other = on(2, {"plans=4", "1:plans=3", "threads=1"});
  EXPECT_NE(other.code, 0);
  EXPECT_THAT(other.err, HasSubstr("the parameters"));
}

TEST_F(SessionTest, DegreesMakeTheMesh) {
  const Result four = on(4, {"tp=2", "threads=1"});
  EXPECT_EQ(four.out, "rank 0 of 4 dp=0/2 tp=0/2: cpu, seed 1, random equal, threads set 1, main\n") << four.err;
  EXPECT_THAT(on(3, {"tp=2"}).err, HasSubstr("3 ranks are not a multiple of 2"));
  EXPECT_THAT(on(2, {"tp=0"}).err, HasSubstr("[session] tp: 0 is not a number of ranks"));
  EXPECT_THAT(on(2, {"dp=-1"}).err, HasSubstr("[session] dp: -1 is not a number of ranks"));
  EXPECT_THAT(on(2, {"tp=2", "axes=dp:2"}).err, HasSubstr("[session] tp: is given, and axes too"));
}

TEST_F(SessionTest, ASignalStopsAllRanksAfterTheSameStep) {
  const Result three = on(3, {"threads=1", "steps=100000"});
  EXPECT_EQ(three.code, 0) << three.err;
  EXPECT_EQ(three.out, "rank 0 stopped after 20 steps\n");
  EXPECT_EQ(text_of(path("logs/rank_2.log")), "rank 2 stopped after 20 steps\n");
}

/// At the step in which all ranks learn of it, and the next run goes on from there.
TEST_F(SessionTest, ASignalSavesBeforeItStops) {
  const Words words{"threads=1", "steps=100000", "saves=" + path("run")};
  const Result two = on(2, words);
  EXPECT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(two.out,
            "rank 0 from step 0\nrank 0 saved step_000007\nrank 0 saved step_000014\nrank 0 saved step_000020\n");
  const Result more = on(3, {"threads=1", "steps=22", "saves=" + path("run")});
  EXPECT_EQ(more.out, "rank 0 from step 20\nrank 0 saved step_000021\nrank 0 saved step_000022\n") << more.err;
}

}  // namespace
}  // namespace caravan::session_test
