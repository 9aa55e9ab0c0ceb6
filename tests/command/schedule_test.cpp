// inspect --schedule, and the bubble of a run.
#include <gmock/gmock.h>

#include "tests/command/command.h"
#include "tests/needs.h"

namespace caravan::schedule_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ScheduleTest : public CommandTest {
 protected:
  /// Inspects the tiny model; `more` follows its overrides.
  Result inspect(const Words& more, const Words& options = {}) const {
    Words words = tiny("run", 2, set(more));
    words.front() = "inspect";
    words.push_back("--schedule");
    words.insert(words.end(), options.begin(), options.end());
    return caravan(words);
  }
};

TEST_F(ScheduleTest, IsDrawnWithItsCosts) {
  const Result result = inspect({"mesh.pp=2", "pipeline.micro_batches=6"}, {"--svg", path("schedule.svg")});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(first_of("pipeline").name + ", 2 ranks, 2 stages, 6 micro-batches of 2 sequences"));
  EXPECT_THAT(result.out, AllOf(HasSubstr("\nrank 0 F0 F1 "), HasSubstr("\nrank 1 ..")));
  EXPECT_THAT(result.out, AllOf(HasSubstr("embedding + 1"), HasSubstr("1 + head"), HasSubstr("mean of the ranks")));
  EXPECT_THAT(text_of(path("schedule.svg")), HasSubstr("</svg>"));
}

/// The bubble and the forwards in flight are those of all steps until the stages stop.
TEST_F(ScheduleTest, OfAsynchronousStagesIsAWindow) {
  testing::needs({"ddp"});
  const Result result = inspect({"mesh.pp=2", "pipeline.schedule=pipedream", "pipeline.drain=30", "train.steps=100",
                                 "optimizer.clip_norm=0", "model.tie_embeddings=false"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("1 micro-batch of 12 sequences, a window of 4 steps (the numbers: of 30)"));
  EXPECT_THAT(result.out, HasSubstr("bubble of the window, mean of the ranks"));
  EXPECT_THAT(result.out, ::testing::ContainsRegex("embedding \\+ 1 +2 "));
}

TEST_F(ScheduleTest, IsRefusedWhereThereIsNone) {
  const Result one = inspect({"mesh.pp=1"});
  EXPECT_EQ(one.code, 2);
  EXPECT_THAT(one.err, AllOf(HasSubstr("mesh.pp is 1: there is no pipeline"), HasSubstr("--set mesh.pp=2")));
  EXPECT_THAT(inspect({"mesh.pp=2"}, {"--link", "1"}).err, HasSubstr("--link excludes --schedule"));
  EXPECT_THAT(inspect({"mesh.pp=2"}, {"--layouts"}).err, HasSubstr("--layouts excludes --schedule"));
}

TEST_F(ScheduleTest, OfARunIsComparedWithTheMeasurement) {
  const Result trained = train("run", 2, set({"mesh.pp=2", "train.steps=2"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Result run = caravan({"inspect", path("run")});
  EXPECT_THAT(run.out, ::testing::ContainsRegex(
                           "measured at step 2, by rank of the pipeline: [0-9.]+ % [0-9.]+ %; predicted: [0-9.]+ %"));
  const Result refused = caravan({"inspect", path("run"), "--schedule"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("--schedule: applies to a recipe"), HasSubstr("run/recipe.toml")));

  const Result whole = train("whole", 1, set({"train.steps=1"}));
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(caravan({"inspect", path("whole")}).out, Not(HasSubstr("bubble")));
}

}  // namespace
}  // namespace caravan::schedule_test
