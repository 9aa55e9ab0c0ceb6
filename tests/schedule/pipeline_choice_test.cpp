#include "caravan/schedule/pipeline_choice.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/registry/registry.h"
#include "caravan/schedule/pipeline_file.h"
#include "caravan/schedule/pipeline_schedule.h"
#include "tests/schedule/pipeline_order.h"

namespace caravan::testing::pipeline_choice_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig model_of(int64_t layers) { return {.layers = layers, .vocabulary = 256}; }

/// "" if the choice fits.
std::string misfit_of(const PipelineChoice& choice, const ModelConfig& model, int64_t micro_batches) {
  const auto misfit = choice.misfit(model, micro_batches);
  return misfit ? misfit->key + ": " + misfit->fact + ": " + misfit->action : "";
}

TEST(PipelineChoice, EveryScheduleHasAnOrder) {
  for (const std::string& name : names_of("pipeline")) {
    const int64_t stages_per_rank = name == "interleaved" || name == "zb-v" ? 2 : 1;
    const PipelineChoice choice = pipeline_of(name, 3, stages_per_rank);
    const int micro_batches = name == "pipedream" ? 1 : 6;  // it takes a batch whole
    EXPECT_EQ(misfit_of(choice, model_of(6), micro_batches), "") << name;
    const PipelineOrder order = pipeline_order(choice, micro_batches);
    EXPECT_EQ(order.ranks.size(), 3U) << name;
    EXPECT_EQ(order.num_stages(), choice.num_stages()) << name;
    EXPECT_EQ(ranks_of_stages(choice), order.rank_of_stage) << name;
  }
}

TEST(PipelineChoice, StagesAreRoundRobinOrAV) {
  EXPECT_THAT(ranks_of_stages(pipeline_of("interleaved", 2, 3)), ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(ranks_of_stages(pipeline_of("zb-v", 3, 2)), ElementsAre(0, 1, 2, 2, 1, 0));
}

TEST(PipelineChoice, NamesTheNearestSchedule) {
  needs({"zb-h1"});
  try {
    const Setting schedule("pipeline", "zbh1");
    FAIL() << "zbh1 is not a schedule";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("'zbh1'"), HasSubstr("the nearest is 'zb-h1'")));
  }
}

TEST(PipelineChoice, RefusesAScheduleWithOtherStagesOnARank) {
  EXPECT_THAT(misfit_of(pipeline_of("interleaved", 2, 1), model_of(8), 4), HasSubstr("pipeline.stages_per_rank = 2"));
  EXPECT_THAT(misfit_of(pipeline_of("zb-v", 2, 1), model_of(8), 4), HasSubstr("pipeline.stages_per_rank = 2"));
  EXPECT_EQ(misfit_of(pipeline_of("zb-v", 2, 0), model_of(8), 4), "") << "as many as it needs";
  EXPECT_EQ(pipeline_of("interleaved", 2, 0).num_stages(), 4);
  EXPECT_THAT(misfit_of(pipeline_of("zb-v", 2, 3), model_of(8), 4), HasSubstr("pipeline.stages_per_rank = 2"));
  EXPECT_THAT(misfit_of(pipeline_of("1f1b", 2, 2), model_of(8), 4), HasSubstr("pipeline.schedule = \"interleaved\""));
}

TEST(PipelineChoice, RefusesMicroBatchesThatAScheduleHasNoTableFor) {
  needs({"interleaved", "pipedream-2bw"});
  const PipelineChoice interleaved = pipeline_of("interleaved", 4, 2);
  EXPECT_EQ(misfit_of(interleaved, model_of(8), 8), "");
  EXPECT_THAT(misfit_of(interleaved, model_of(8), 9), HasSubstr("not a multiple of the 4 ranks"));
  EXPECT_THAT(misfit_of(pipeline_of("pipedream-2bw", 4, 1), model_of(8), 3), HasSubstr("fewer than the 4 ranks"));
  EXPECT_THROW(order_of("pipedream-2bw", 4, 6, 0, 3), UsageError);
}

TEST(PipelineChoice, InterleavedNamesTheNearestMicroBatches) {
  const std::pair<int, const char*> cases[] = {{1, "use 4"}, {9, "use 8"}, {11, "use 12"}};
  for (const auto& [micro_batches, nearest] : cases) {
    try {
      order_of("interleaved", 4, micro_batches, 2);
      ADD_FAILURE() << micro_batches << " is not a multiple of 4";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr(nearest));
    }
  }
}

TEST(PipelineChoice, OrdersWithoutARankAMicroBatchOrAStageAreErrors) {
  needs({"1f1b", "gpipe", "zb-v", "interleaved"});
  EXPECT_THROW(order_of("1f1b", 0, 4), UsageError);
  EXPECT_THROW(order_of("gpipe", 2, 0), UsageError);
  EXPECT_THROW(order_of("zb-v", 2, -1), UsageError);
  EXPECT_THROW(order_of("interleaved", 2, 0), UsageError);
}

TEST(PipelineChoice, ComparesATableOfAFileWithTheRecipe) {
  PipelineChoice choice{.degree = 2, .file = "own.txt"};
  choice.table = to_text(order_of("zb-h1", 2, 3));
  EXPECT_EQ(misfit_of(choice, model_of(2), 3), "");
  EXPECT_EQ(misfit_of(choice, model_of(2), 0), "");
  EXPECT_THAT(misfit_of(choice, model_of(2), 4), HasSubstr("use pipeline.micro_batches = 3"));
  choice.degree = 3;
  EXPECT_THAT(misfit_of(choice, model_of(3), 3), HasSubstr("use mesh.pp = 2"));
  choice.degree = 2;
  choice.table = to_text(order_of("interleaved", 2, 2, 2));
  EXPECT_EQ(misfit_of(choice, model_of(4), 2), "");
  EXPECT_THAT(misfit_of(choice, model_of(3), 2), HasSubstr("4 stages for 3 layers"));
}

}  // namespace
}  // namespace caravan::testing::pipeline_choice_test
