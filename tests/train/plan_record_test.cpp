#include "caravan/train/folder/plan_record.h"

#include <fstream>
#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "tests/data/support.h"

namespace caravan::testing::plan_record_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

PlanRecord example() {
  return {.num_ranks = 4,
          .layout = "pp 2 (1f1b) x dp 2",
          .keys = {{"mesh.pp", int64_t{2}},
                   {"tensor_parallel.sequence", true},
                   {"some.share", 1.0},
                   {"pipeline.schedule", std::string("gpipe")},
                   {"pipeline.layers", std::vector<int64_t>{3, 1}},
                   {"some.names", std::vector<std::string>{"a", "b"}}},
          .step_seconds = 0.25,
          .memory_bytes = int64_t{3} << 30,
          .reasons = {"1 s against 2 s"},
          .hardware = "measured on NAME"};
}

TEST(PlanRecord, IsReadAsItWasWritten) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_plan(folder.path()), std::nullopt);
  write_plan(folder.path(), example());
  EXPECT_EQ(read_plan(folder.path()), example());
}

TEST(PlanRecord, ThatIsDamagedIsNamed) {
  const TemporaryFolder folder;
  const std::string whole = example().to_json();
  for (const std::string& text :
       {std::string(), std::string("{}"), whole.substr(0, whole.size() / 2), std::string(R"({"ranks": "two"})")}) {
    std::ofstream(folder.path() / "plan.json") << text;
    try {
      read_plan(folder.path());
      ADD_FAILURE() << text;
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("plan.json"), HasSubstr("do: remove it")));
    }
  }
}

TEST(PlanComparison, TakesTheMedianWithoutTheFirstStep) {
  const PlanComparison odd(example(), {900, 300, 200, 100}, int64_t{2} << 30);
  EXPECT_EQ(odd.num_steps, 3);
  EXPECT_EQ(odd.measured_ms, 200);
  EXPECT_EQ(odd.to_string(),
            "predicted 250 ms a step, measured 200 ms (median of 3 steps): 0.80; memory 3.0 GiB predicted, 2.0 GiB "
            "measured");
  const auto line = nlohmann::json::parse(odd.to_json(7));
  EXPECT_EQ(line, nlohmann::json::parse(R"({"step": 7, "plan": {"predicted_step_ms": 250.0, "measured_step_ms": 200.0,
      "steps": 3, "predicted_memory_bytes": 3221225472, "measured_memory_bytes": 2147483648}})"));
  EXPECT_EQ(PlanComparison(example(), {900, 400, 100, 300, 200}, 1).measured_ms, 250);
}

TEST(PlanComparison, SaysWhenStepsAreTooFew) {
  for (const auto& [steps, want] :
       {std::pair(1, "0 steps after the first are too few"), std::pair(2, "1 step after the first is too few"),
        std::pair(3, "2 steps after the first are too few")}) {
    const PlanComparison few(example(), std::vector<double>(static_cast<size_t>(steps), 5.0), 1);
    EXPECT_FALSE(few.has_enough_steps());
    EXPECT_THAT(few.to_string(), HasSubstr(want));
    EXPECT_FALSE(nlohmann::json::parse(few.to_json(1)).at("plan").contains("measured_step_ms"));
  }
}

}  // namespace
}  // namespace caravan::testing::plan_record_test
