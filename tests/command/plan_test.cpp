// caravan plan: a table of published runs in, a table of predictions out.
#include <gmock/gmock.h>

#include "tests/command/command.h"

namespace caravan::plan_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class PlanTest : public CommandTest {};

TEST_F(PlanTest, PublishedRunsArePredictedAndCompared) {
  const std::string header =
      "target_id,file,tier,framework,layers,hidden,heads,seq,hw,num_gpus,tp,micro_batch,step_s,mem_gb,oom\n";
  const std::string run = "Megatron-LM,48,6144,64,2048,a100-80,8,8,4,";
  const Result result =
      caravan({"plan", "--published",
               file("runs.csv", header + "one,papers,A," + run + "1.2,,\n" + "\"two, of them\",papers,A," + run +
                                    ",60,\n" + ",,,\n" + "much,,,Megatron-LM,96,12288,96,2048,a100-40,8,8,1,,,Y\n")});
  EXPECT_EQ(result.code, 0) << result.err;
  // MatchesRegex of gmock: a line each, the id in quotes if it needs them, no field blank.
  EXPECT_THAT(result.out, MatchesRegex("target_id,step_s,mem_gb,fits\n"
                                       "one,[0-9.]+,[0-9.]+,yes\n"
                                       "\"two, of them\",[0-9.]+,[0-9.]+,yes\n"
                                       "row 3,[0-9.]+,[0-9.]+,yes\n"
                                       "much,[0-9.]+,[0-9.]+,no\n"));
  EXPECT_THAT(result.err, AllOf(HasSubstr("A papers"), HasSubstr("best constant")));
}

TEST_F(PlanTest, WithoutAnswersThereAreNoErrors) {
  const Result result = caravan({"plan", "--published", file("runs.csv", "layers\n12\n")});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "");
}

TEST_F(PlanTest, WhatCannotBeReadIsSaid) {
  const Result missing = caravan({"plan", "--published", path("none.csv")});
  EXPECT_NE(missing.code, 0);
  EXPECT_THAT(missing.err, HasSubstr("none.csv"));
  EXPECT_NE(caravan({"plan", "--published", folder()}).code, 0);
  EXPECT_THAT(caravan({"plan", "--published", file("empty.csv", "")}).err, HasSubstr("is empty"));
  EXPECT_THAT(caravan({"plan", "--published", file("other.csv", "a,b\n1,2\n")}).err,
              HasSubstr("none of the columns that describe a run"));
  const Result nothing = caravan({"plan"});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("--published FILE.csv"));
}

}  // namespace
}  // namespace caravan::plan_test
