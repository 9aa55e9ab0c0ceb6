// train --auto: measures the ranks, chooses a layout, trains with it; a resume goes on with it.
#include <algorithm>
#include <gmock/gmock.h>

#include "tests/command/command.h"

namespace caravan::auto_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class AutoTest : public CommandTest {
 protected:
  nlohmann::json plan_of(const std::string& run) const {
    return nlohmann::json::parse(text_of(path(run + "/plan.json")));
  }
  /// The lines of the log about plans.
  std::vector<nlohmann::json> comparisons(const std::string& run) const {
    std::vector<nlohmann::json> found;
    for (const nlohmann::json& line : log(run)) {
      if (line.contains("plan")) found.push_back(line);
    }
    return found;
  }
  /// Losses and norms of all steps: equal bits mean equal sums in an equal order.
  std::vector<std::pair<double, double>> numbers(const std::string& run) const {
    std::vector<std::pair<double, double>> all;
    for (const nlohmann::json& line : log(run)) {
      if (line.contains("loss")) all.emplace_back(line.at("loss"), line.at("grad_norm"));
    }
    EXPECT_EQ(all.size(), 6U) << run;
    return all;
  }
  Result refused(int ranks, const Words& keys, int code) const {
    Words words = set(keys);
    words.push_back("--auto");
    Result result = train("refused", ranks, words);
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_THAT(result.out, Not(HasSubstr("measured"))) << "before it is refused";
    EXPECT_FALSE(std::filesystem::exists(path("refused")));
    return result;
  }
};

void expect_choice(const std::string& recipe, const nlohmann::json& plan) {
  EXPECT_EQ(plan.at("ranks"), 2);
  EXPECT_GT(plan.at("predicted_step_ms"), 0);
  EXPECT_GT(plan.at("predicted_memory_bytes"), 0);
  EXPECT_FALSE(plan.at("layout").get<std::string>().empty());
  for (const auto& [key, value] : plan.at("keys").items()) {
    const std::string name = key.substr(key.find('.') + 1);
    EXPECT_THAT(recipe, HasSubstr("\n" + name + " = " + value.dump() + "\n")) << key;
  }
}

TEST_F(AutoTest, TheChoiceIsRecordedTrainedAndCompared) {
  const Result whole = train("whole", 2, {"--auto"});
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(whole.out, AllOf(HasSubstr("2 ranks measured in "), HasSubstr(" layouts estimated"),
                               HasSubstr("(median of 5 steps)"), HasSubstr(" measured\n")));
  const nlohmann::json plan = plan_of("whole");
  expect_choice(text_of(path("whole/recipe.toml")), plan);
  EXPECT_THAT(whole.out, HasSubstr("plan      " + plan.at("layout").get<std::string>() + ": "));
  ASSERT_EQ(comparisons("whole").size(), 1U);
  const nlohmann::json line = comparisons("whole").front();
  EXPECT_EQ(line.at("step"), 6);
  EXPECT_EQ(line.at("plan").at("steps"), 5);
  EXPECT_EQ(line.at("plan").at("predicted_step_ms"), plan.at("predicted_step_ms"));
  int64_t peak = 0;
  std::vector<double> ms;
  for (const nlohmann::json& step : log("whole")) {
    if (!step.contains("loss")) continue;
    ms.push_back(step.at("step_ms"));
    peak = step.at("peak_memory_bytes");
  }
  std::sort(ms.begin() + 1, ms.end());
  EXPECT_EQ(line.at("plan").at("measured_step_ms"), ms.at(3));
  EXPECT_GE(line.at("plan").at("measured_memory_bytes"), peak);

  // Its recipe alone gives the same run.
  ASSERT_EQ(
      caravan({"train", path("whole/recipe.toml"), "--ranks", "2", "--set", "checkpoint.dir=" + path("again")}).code,
      0);
  EXPECT_EQ(numbers("again"), numbers("whole"));
  EXPECT_FALSE(std::filesystem::exists(path("again/plan.json")));

  const Result half = train("halves", 2, {"--auto", "--stop-after", "2"});
  ASSERT_EQ(half.code, 0) << half.err;
  EXPECT_THAT(half.out, AllOf(HasSubstr("(caravan cache)"), Not(HasSubstr("ranks measured in ")),
                              HasSubstr("1 step after the first is too few")));
  EXPECT_EQ(plan_of("halves").at("keys"), plan.at("keys"));
  EXPECT_FALSE(comparisons("halves").front().at("plan").contains("measured_step_ms"));
  const Result rest = train("halves", 2, {"--resume"});
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_THAT(rest.out, AllOf(HasSubstr("as --auto chose before\n"), Not(HasSubstr("before the resume it was"))));
  EXPECT_EQ(numbers("halves"), numbers("whole"));
  EXPECT_EQ(comparisons("halves").size(), 2U);
  // Reports of the run leave these lines out.
  EXPECT_EQ(caravan({"plot", path("halves"), "--of", "loss"}).code, 0);
}

TEST_F(AutoTest, AResumeGoesOnWithTheChoiceOnAsManyRanksOnly) {
  ASSERT_EQ(train("run", 2, {"--auto", "--stop-after", "1"}).code, 0);
  const nlohmann::json plan = plan_of("run");
  const auto resumed = [&](int ranks, int64_t steps, const Words& more) {
    Words words{"--resume", "--stop-after", std::to_string(steps)};
    words.insert(words.end(), more.begin(), more.end());
    Result result = train("run", ranks, words);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  EXPECT_THAT(resumed(2, 2, {"--auto"}),
              AllOf(HasSubstr("nothing is measured or chosen again"), Not(HasSubstr("estimated"))));
  EXPECT_EQ(plan_of("run"), plan);
  EXPECT_THAT(resumed(1, 3, {}), AllOf(HasSubstr("is for 2 ranks, and this run has 1: the layout is the recipe's"),
                                       Not(HasSubstr("predicted 0"))));
  EXPECT_EQ(plan_of("run"), plan);
  // A key that the command line gives is another wish than what was chosen.
  const int64_t other = plan.at("keys").value("train.micro_batch", 0) == 2 ? 3 : 2;
  EXPECT_THAT(resumed(2, 4, {"--auto", "--set", "train.micro_batch=" + std::to_string(other), "mesh.dp=2"}),
              AllOf(HasSubstr("it chooses again"), HasSubstr("x " + std::to_string(other) + " sequences")));
  EXPECT_EQ(plan_of("run").at("keys").at("train.micro_batch"), other);
  EXPECT_THAT(resumed(1, 5, {"--auto"}), AllOf(HasSubstr("it chooses again"), HasSubstr("1 rank measured in")));
  EXPECT_EQ(plan_of("run").at("ranks"), 1);
  file("run/plan.json", "{\"ranks\": 1}");
  const Result damaged = train("run", 1, {"--resume"});
  EXPECT_EQ(damaged.code, 3) << damaged.out;
  EXPECT_THAT(damaged.err, AllOf(HasSubstr("plan.json"), HasSubstr("remove it")));
}

TEST_F(AutoTest, WhatCannotBePlannedIsRefusedBeforeAnythingIsMeasured) {
  EXPECT_THAT(refused(5, {}, 2).err, AllOf(HasSubstr("no layout of 5 ranks is legal"), HasSubstr("global_batch = 10")));
  EXPECT_THAT(refused(2, {"data_parallel.technique=diloco"}, 2).err,
              AllOf(HasSubstr("the gradient of one process"), HasSubstr("leave --auto out")));
  EXPECT_THAT(refused(2, {"mesh.pp=2", "pipeline.schedule=pipedream"}, 2).err, HasSubstr("pipedream"));
  std::filesystem::create_directories(path("used"));
  file("used/train.log", "");
  const Result used = train("used", 2, {"--auto"});
  EXPECT_EQ(used.code, 2);
  EXPECT_THAT(used.err, HasSubstr("holds a run already"));
  const Result missing = train("missing", 2, {"--auto", "--resume"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr("holds no checkpoint to resume from"));
  for (const Result& one : {used, missing}) EXPECT_THAT(one.out, Not(HasSubstr("measured")));
}

TEST_F(AutoTest, WhatFitsNowhereSaysByHowMuch) {
  const Result result = train("large", 2, {"--auto", "--set", "model.width=65536", "model.layers=8"});
  EXPECT_EQ(result.code, 5) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("fits 2 ranks: the least needs"), HasSubstr("more than the")));
  EXPECT_FALSE(std::filesystem::exists(path("large")));
}

/// Ranks that another launcher has started, of which one was not told.
TEST_F(AutoTest, AllRanksHaveToBeToldSo) {
  Words with = tiny("run", 2, {"--auto"}), without = tiny("run", 2);
  for (Words* words : {&with, &without}) words->erase(words->begin() + 1, words->begin() + 3);  // --ranks 2
  for (const Result& rank : by_hand({with, without})) {
    EXPECT_EQ(rank.code, 2) << rank.err;
    EXPECT_THAT(rank.err, HasSubstr("--auto"));
  }
}

}  // namespace
}  // namespace caravan::auto_test
