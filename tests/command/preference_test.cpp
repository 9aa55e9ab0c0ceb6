// data.task = "preference": a run that learns which of two answers is better.
#include <cmath>
#include <gmock/gmock.h>

#include "tests/command/command.h"

namespace caravan::preference_test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class PreferenceTest : public CommandTest {
 protected:
  void SetUp() override {
    ASSERT_EQ(train("base", 1, set({"train.steps=2", "data.tokenizer={train = 300}"})).code, 0);
    std::string lines;
    for (int i = 0; i < 100; ++i) {
      const std::string number = std::to_string(i * 7 % 30);
      lines +=
          nlohmann::json{{"prompt", "Say " + number + ":"}, {"chosen", " the whale " + number}, {"rejected", " a ship"}}
              .dump() +
          "\n";
    }
    file("pairs.jsonl", lines);
  }
  /// Starts from `base`, with its tokenizer.
  Result learn(const std::string& run, int ranks, const std::vector<std::string>& more = {}) const {
    Words words{"train", "--ranks", std::to_string(ranks)};
    for (const Words& part : {set({"train.init_from=" + path("base"), "data.task=preference",
                                   "data.text=" + path("pairs.jsonl"), "train.steps=6", "train.global_batch=12",
                                   "sample.tokens=0", "comm.threads_per_rank=1", "checkpoint.dir=" + path(run)}),
                              set(more)}) {
      words.insert(words.end(), part.begin(), part.end());
    }
    return caravan(words);
  }
};

TEST_F(PreferenceTest, LearnsOnAnyRanksAndResumes) {
  const Result one = learn("one", 1, {"train.steps=12", "optimizer.schedule=constant", "optimizer.warmup_steps=0"});
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.out, AllOf(HasSubstr("compares answers with " + path("base")),
                             ContainsRegex("loss 0.6931 .*margin 0.0000, 0.0 % of pairs right")));
  const auto lines = log("one");
  EXPECT_NEAR(lines.front().at("loss"), std::log(2), 1e-5);
  EXPECT_LT(lines.back().at("loss"), 0.5);
  EXPECT_GT(lines.back().at("reward_accuracy"), 0.9);
  EXPECT_GT(lines.back().at("val_accuracy"), 0.9);
  ASSERT_EQ(learn("two", 2, {"train.steps=6", "optimizer.schedule=constant", "optimizer.warmup_steps=0"}).code, 0);
  const Result resumed = caravan(
      {"train", path("two/recipe.toml"), "--ranks", "2", "--resume", "--set", "train.steps=12", "--set", "mesh.tp=2"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NEAR(log("two").back().at("loss").get<double>(), lines.back().at("loss").get<double>(), 1e-3);

  const Result evaluated = caravan({"evaluate", path("one"), path("pairs.jsonl")});
  EXPECT_EQ(evaluated.code, 2);
  EXPECT_THAT(evaluated.err, HasSubstr("--set data.task=next"));
  const Result text = caravan({"evaluate", path("one"), path("text.txt"), "--set", "data.task=next"});
  EXPECT_EQ(text.code, 0) << text.err;
  const Result report = caravan({"report", path("one")});
  EXPECT_EQ(report.code, 0) << report.err;

  std::filesystem::rename(folder() / "base", folder() / "moved");
  const Result missing =
      caravan({"train", path("two/recipe.toml"), "--ranks", "2", "--resume", "--set", "train.steps=13"});
  EXPECT_NE(missing.code, 0);
  EXPECT_THAT(missing.err, HasSubstr(path("base")));
}

TEST_F(PreferenceTest, AdaptersNeedNoOtherModel) {
  const Result result =
      learn("adapters", 2,
            {"lora.rank=4", "lora.targets=[\"*\"]", "optimizer.lr=0.01", "preference.loss=ipo", "preference.beta=0.5"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("compares answers with the weights under the adapters"));
  EXPECT_NEAR(log("adapters").front().at("loss"), 1, 1e-5);
  EXPECT_LT(log("adapters").back().at("loss"), 1);
}

TEST_F(PreferenceTest, ShowsPairsAndProvesTheirRecipe) {
  const std::string recipe = file("pairs.toml", "[train]\ninit_from = \"" + path("base") +
                                                    "\"\nglobal_batch = 12\n[data]\ntask = \"preference\"\n"
                                                    "text = \"" +
                                                    path("pairs.jsonl") + "\"\n");
  const Result shown = caravan({"data", "inspect", recipe, "--samples", "1"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, AllOf(HasSubstr("  chosen"), HasSubstr("rejected"), HasSubstr("1 targets")));
  const Result proved = caravan({"prove", recipe, "--set", "mesh.dp=2", "--set", "mesh.tp=2"});
  ASSERT_EQ(proved.code, 0) << proved.err;
  EXPECT_THAT(proved.out, AllOf(HasSubstr("holds: "), HasSubstr("loss of pairs")));
  const Result planned = caravan({"inspect", recipe, "--ranks", "2", "--set", "train.micro_batch=3"});
  ASSERT_EQ(planned.code, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("= 12 x both answers 64"));
}

TEST_F(PreferenceTest, RefusesWhatCannotWork) {
  file("bad.jsonl", "{\"prompt\": \"a\", \"chosen\": \"b\"}\n");
  const Result bad = learn("bad", 1, {"data.text=" + path("bad.jsonl")});
  EXPECT_EQ(bad.code, 3);
  EXPECT_THAT(bad.err, AllOf(HasSubstr("bad.jsonl:1"), HasSubstr("rejected")));
  EXPECT_EQ(learn("split", 2, {"mesh.cp=2"}).code, 2);
  const Result nothing = learn("nothing", 1, {"train.init_from=", "data.tokenizer={train = 300}"});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("preference.reference"));
}

}  // namespace
}  // namespace caravan::preference_test
