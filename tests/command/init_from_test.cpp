// train.init_from: a run that starts with the weights of another.
#include <gmock/gmock.h>

#include "tests/command/command.h"

namespace caravan::init_from_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class InitFromTest : public CommandTest {
 protected:
  /// Trains as tiny() does, but without its keys of the model and the tokenizer.
  Result tune(const std::string& run, int ranks, const std::vector<std::string>& overrides) const {
    Words words = tiny(run, ranks);
    for (const char* key : {"model.", "data.tokenizer="}) {
      for (size_t i = 1; i < words.size();) {
        const bool is_of_key = words[i].starts_with(key);
        if (is_of_key)
          words.erase(words.begin() + static_cast<std::ptrdiff_t>(i) - 1,
                      words.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        if (!is_of_key) ++i;
      }
    }
    const Words more = set(overrides);
    words.insert(words.end(), more.begin(), more.end());
    return caravan(words);
  }
};

class InitFromKinds : public InitFromTest, public ::testing::WithParamInterface<std::vector<std::string>> {};

/// Under every arrangement the weights arrive unchanged: with a learning rate of 0 the first step does not change them.
TEST_P(InitFromKinds, WeightsArriveUnchangedOnAnyRanks) {
  std::vector<std::string> overrides = GetParam();
  overrides.insert(overrides.end(), {"data.tokenizer={train = 300}", "train.steps=3"});
  ASSERT_EQ(train("base", 2, set(overrides)).code, 0);
  ASSERT_EQ(caravan({"export", path("base")}).code, 0);
  const std::string want = text_of(folder() / "base/huggingface/model.safetensors");
  int number = 0;
  for (const std::string source : {"base", "base/step_000003", "base/huggingface"}) {
    for (const std::vector<std::string>& arrangement :
         {std::vector<std::string>{}, {"mesh.tp=2"}, {"data_parallel.technique=zero3"}, {"mesh.pp=2"}}) {
      const std::string run = "tuned" + std::to_string(number++);
      std::vector<std::string> more{"train.init_from=" + path(source), "optimizer.lr=0", "train.steps=1"};
      more.insert(more.end(), arrangement.begin(), arrangement.end());
      const Result result = tune(run, 2, more);
      ASSERT_EQ(result.code, 0) << result.err;
      EXPECT_THAT(result.out, HasSubstr("starts with the weights of"));
      ASSERT_EQ(caravan({"export", path(run)}).code, 0);
      EXPECT_TRUE(text_of(folder() / run / "huggingface/model.safetensors") == want) << source << " " << run;
      EXPECT_EQ(text_of(folder() / run / "tokenizer.json"), text_of(folder() / "base/tokenizer.json"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, InitFromKinds,
                         ::testing::Values(std::vector<std::string>{"model.kind=gpt2"},
                                           std::vector<std::string>{"model.kind=llama", "model.kv_heads=1",
                                                                    "model.tie_embeddings=false"}));

TEST_F(InitFromTest, HasItsOwnContextAndResumesWithoutTheSource) {
  ASSERT_EQ(train("base", 2, set({"train.steps=20", "optimizer.lr=0.01"})).code, 0);
  const double before = log("base").back().at("val_loss");
  const std::vector<std::string> own{"train.init_from=" + path("base"), "model.context=16", "model.dropout=0.1",
                                     "model.hidden=0"};
  ASSERT_EQ(tune("tuned", 2, own).code, 0);
  EXPECT_LT(log("tuned").front().at("loss").get<double>(), log("base").front().at("loss").get<double>() - 1);
  EXPECT_LT(log("tuned").back().at("val_loss").get<double>(), before + 0.5);
  std::filesystem::remove_all(path("base"));
  const Result resumed =
      caravan({"train", path("tuned/recipe.toml"), "--ranks", "1", "--resume", "--set", "train.steps=8"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, AllOf(HasSubstr("resumed after step 6"), Not(HasSubstr("starts with"))));
}

TEST_F(InitFromTest, SaysThatItReadsTextByAnotherTokenizer) {
  ASSERT_EQ(train("base", 1, set({"train.steps=1", "data.tokenizer={train = 300}"})).code, 0);
  ASSERT_EQ(train("bytes", 1, set({"train.steps=1"})).code, 0);
  const std::string other = "data.tokenizer=" + path("bytes/tokenizer.json");
  const Result result = tune("tuned", 1, {"train.init_from=" + path("base"), "train.steps=1", other});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("reads text by "));
}

TEST_F(InitFromTest, WhatTheWeightsContradictIsRefused) {
  ASSERT_EQ(train("base", 1, set({"train.steps=1"})).code, 0);
  const std::string from = "train.init_from=" + path("base");
  const auto refusal = [&](int code, const std::vector<std::string>& overrides) {
    const Result result = tune("refused", 1, overrides);
    EXPECT_EQ(result.code, code) << result.out;
    EXPECT_FALSE(std::filesystem::exists(path("refused")));
    return result.err;
  };
  EXPECT_THAT(refusal(2, {from, "model.layers=3"}), AllOf(HasSubstr("model.layers: is 3"), HasSubstr("is 2")));
  EXPECT_THAT(refusal(2, {from, "model.context=64"}), HasSubstr("has learned 32 positions"));
  EXPECT_THAT(refusal(3, {"train.init_from=" + path("none")}), HasSubstr("no such folder"));
  EXPECT_THAT(refusal(2, {from, "data.tokenizer={train = 300}"}),
              AllOf(HasSubstr("data.tokenizer: a tokenizer trained on this text has other tokens"),
                    HasSubstr(path("base/tokenizer.json"))));
  ASSERT_EQ(caravan({"export", path("base"), "--out", path("folder")}).code, 0);
  std::filesystem::remove(path("folder/tokenizer.json"));
  const std::string from_folder = "train.init_from=" + path("folder");
  for (const char* tokenizer : {"data.tokenizer={train = 300}", "data.tokenizer=bytes"}) {
    EXPECT_THAT(refusal(3, {from_folder, tokenizer}), HasSubstr("folder/tokenizer.json: does not exist")) << tokenizer;
  }
  const Result proved = caravan({"prove", "--set", from_folder});
  EXPECT_THAT(proved.out, AllOf(HasSubstr("gpt2"), HasSubstr("proved"))) << proved.err;
  EXPECT_EQ(proved.out.find("are missing"), std::string::npos) << "config.json says what is proved";
  file("empty/notes.txt", "nothing");
  EXPECT_EQ(refusal(3, {"train.init_from=" + path("empty")}).find("internal"), std::string::npos);
  for (const auto& entry : std::filesystem::directory_iterator(path("base/step_000001"))) {
    if (entry.path().extension() == ".safetensors") std::filesystem::resize_file(entry.path(), 100);
  }
  EXPECT_THAT(refusal(3, {from}), HasSubstr(".safetensors"));
}

}  // namespace
}  // namespace caravan::init_from_test
