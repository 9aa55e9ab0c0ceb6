// Adapters: trained on weights of another run, exported merged or in PEFT's format, and imported again.
#include <gmock/gmock.h>

#include "tests/command/command.h"
#include "tests/train/earlier_run.h"

namespace caravan::lora_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class LoraTest : public CommandTest {
 protected:
  void SetUp() override {
    ASSERT_EQ(train("base", 1, set({"train.steps=1", "data.tokenizer={train = 300}"})).code, 0);
    ASSERT_EQ(caravan({"export", path("base")}).code, 0);
  }

  /// Adapters of `base`, with the weights' own tokenizer.
  Result tune(const std::string& run, int ranks, const std::vector<std::string>& overrides) const {
    Words words = tiny(run, ranks, set({"train.init_from=" + path("base"), "optimizer.lr=0.01", "lora.rank=4"}));
    std::erase_if(words, [](const std::string& word) { return word.starts_with("data.tokenizer="); });
    for (size_t i = words.size(); i-- > 1;) {  // --set without its key
      if (words[i] == "--set" && (i + 1 == words.size() || words[i + 1] == "--set")) words.erase(words.begin() + i);
    }
    const Words more = set(overrides);
    words.insert(words.end(), more.begin(), more.end());
    return caravan(words);
  }

  double last_loss(const std::string& run) const { return log(run).back().at("val_loss").get<double>(); }
};

TEST_F(LoraTest, LearnsTheSameOnAnyRanks) {
  const std::string all = "lora.targets=[\"*\"]";
  ASSERT_EQ(tune("one", 1, {all}).code, 0);
  EXPECT_LT(last_loss("one"), last_loss("base") - 0.01);
  for (const auto& [ranks, override] : std::vector<std::pair<int, std::string>>{
           {2, "data_parallel.technique=zero3"}, {2, "mesh.tp=2"}, {2, "mesh.pp=2"}, {3, "comm.check=true"}}) {
    const std::string run = "other" + override;
    const Result result = tune(run, ranks, {all, override});
    ASSERT_EQ(result.code, 0) << result.err;
    // Six steps of AdamW on sums in another order.
    EXPECT_NEAR(last_loss(run), last_loss("one"), 1e-4) << override;
  }
}

const std::vector<std::string> kAll{"lora.targets=[\"*\"]", "lora.rslora=true", "lora.dora=true", "lora.dropout=0.1",
                                    "lora.modules_to_save=[\"embedding\", \"head\"]"};

std::vector<std::string> operator+(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_F(LoraTest, AllKindsLearnTheSameOnAnyRanks) {
  ASSERT_EQ(tune("one", 1, kAll).code, 0);
  EXPECT_LT(last_loss("one"), last_loss("base") - 0.01);
  for (const std::vector<std::string>& keys : std::vector<std::vector<std::string>>{
           {"data_parallel.technique=zero3", "data_parallel.share=off", "lora.keep_frozen=true"},
           {"data_parallel.technique=zero1"},
           {"mesh.tp=2"},
           {"mesh.pp=2"}}) {
    const std::string run = "other" + keys.back();
    const Result result = tune(run, 2, kAll + keys);
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_NEAR(last_loss(run), last_loss("one"), 1e-4) << run;
  }
  // Resumed on other ranks.
  ASSERT_EQ(tune("parts", 2, kAll + std::vector<std::string>{"train.steps=3", "optimizer.schedule=constant"}).code, 0);
  ASSERT_EQ(tune("constant", 1, kAll + std::vector<std::string>{"optimizer.schedule=constant"}).code, 0);
  const Result resumed =
      caravan({"train", path("parts/recipe.toml"), "--ranks", "3", "--resume", "--set", "train.steps=6", "--set",
               "data_parallel.technique=zero3", "--set", "train.micro_batch=4"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NEAR(last_loss("parts"), last_loss("constant"), 1e-4);
  for (const char* key : {"lora.dora=false", "lora.modules_to_save=[]", "lora.rslora=false"}) {
    EXPECT_NE(caravan({"train", path("parts/recipe.toml"), "--resume", "--set", key}).code, 0) << key;
  }
}

/// What evaluates, generates and is exported computes the same as the run.
TEST_F(LoraTest, AllKindsAreExportedAndComeBack) {
  ASSERT_EQ(tune("tuned", 2, kAll).code, 0);
  ASSERT_EQ(caravan({"export", path("tuned")}).code, 0);
  ASSERT_EQ(caravan({"export", path("tuned"), "--adapter", "--base", "my/base"}).code, 0);
  EXPECT_THAT(text_of(folder() / "tuned/adapter/adapter_config.json"),
              AllOf(HasSubstr("\"use_dora\": true"), HasSubstr("\"use_rslora\": true"), HasSubstr("wte"),
                    HasSubstr("\"lora_dropout\": 0.1")));
  const auto generated = [&](const std::string& source) {
    const Result result = caravan(
        {"generate", path(source), "--prompt", "The whale", "--temperature", "0", "--tokens", "8", "--ranks", "2"});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  EXPECT_EQ(generated("tuned/huggingface"), generated("tuned"));
  // The fused query, key and value have the ranks of all three.
  const Result taken =
      tune("taken", 2, {"lora.rank=12", "lora.adapter=" + path("tuned/adapter"), "optimizer.lr=0", "lora.dropout=0.0"});
  ASSERT_EQ(taken.code, 0) << taken.err;
  EXPECT_NEAR(last_loss("taken"), last_loss("tuned"), 1e-5);
  const Result imported =
      caravan({"import", path("base/huggingface"), "--adapter", path("tuned/adapter"), "--out", path("imported")});
  ASSERT_EQ(imported.code, 0) << imported.err;
  EXPECT_EQ(generated("imported"), generated("tuned"));
}

TEST_F(LoraTest, FrozenWeightsThatStayAreNotSentAgain) {
  const std::vector<std::string> zero3{"data_parallel.technique=zero3", "data_parallel.share=off", "train.steps=3"};
  const auto sent = [&](const std::string& run) { return log(run).at(1).at("bytes_sent").get<int64_t>(); };
  ASSERT_EQ(tune("freed", 2, zero3).code, 0);
  ASSERT_EQ(tune("kept", 2, zero3 + std::vector<std::string>{"lora.keep_frozen=true"}).code, 0);
  EXPECT_LT(sent("kept") * 4, sent("freed"));
  EXPECT_NEAR(last_loss("kept"), last_loss("freed"), 1e-5);
}

TEST_F(LoraTest, ResumesToTheSameBits) {
  ASSERT_EQ(tune("whole", 2, {}).code, 0);
  ASSERT_EQ(tune("parts", 2, {"train.steps=3", "optimizer.schedule=constant"}).code, 0);
  ASSERT_EQ(tune("constant", 2, {"optimizer.schedule=constant"}).code, 0);
  const Result resumed =
      caravan({"train", path("parts/recipe.toml"), "--ranks", "2", "--resume", "--set", "train.steps=6"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_TRUE(tensors(folder() / "parts/step_000006") == tensors(folder() / "constant/step_000006"));
  EXPECT_EQ(caravan({"train", path("parts/recipe.toml"), "--resume", "--set", "lora.rank=2"}).code, 3);
}

TEST_F(LoraTest, TheExportIsMergedAndTheAdaptersComeBack) {
  ASSERT_EQ(tune("tuned", 2, {"lora.targets=[\"query\", \"value\", \"mlp.up\"]"}).code, 0);
  const Words prompt{"--prompt", "The whale", "--temperature", "0", "--tokens", "8"};
  const auto generated = [&](const std::string& source) {
    Words words{"generate", path(source)};
    words.insert(words.end(), prompt.begin(), prompt.end());
    const Result result = caravan(words);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  ASSERT_EQ(caravan({"export", path("tuned")}).code, 0);
  EXPECT_EQ(generated("tuned/huggingface"), generated("tuned"));
  const auto weights = [&](const std::string& run) { return tensors(folder() / run / "huggingface"); };
  const auto before = weights("base");
  for (const auto& [name, bytes] : weights("tuned")) {
    const bool is_adapted = name.find("c_attn.weight") != std::string::npos || name.find("c_fc.w") != std::string::npos;
    EXPECT_EQ(bytes == before.at(name), !is_adapted) << name;
  }

  const Result exported = caravan({"export", path("tuned"), "--adapter", "--base", "my/base"});
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_THAT(text_of(folder() / "tuned/adapter/adapter_config.json"),
              AllOf(HasSubstr("\"my/base\""), HasSubstr("c_attn"), HasSubstr("\"lora_alpha\": 16")));
  const Result taken = tune("taken", 2, {"lora.rank=8", "lora.adapter=" + path("tuned/adapter"), "optimizer.lr=0"});
  ASSERT_EQ(taken.code, 0) << taken.err;
  EXPECT_NEAR(last_loss("taken"), last_loss("tuned"), 1e-5);
  const Result imported =
      caravan({"import", path("base/huggingface"), "--adapter", path("tuned/adapter"), "--out", path("imported")});
  ASSERT_EQ(imported.code, 0) << imported.err;
  EXPECT_EQ(generated("imported"), generated("tuned"));
}

TEST_F(LoraTest, BadAdaptersAreRefused) {
  const auto refusal = [&](int code, const std::vector<std::string>& overrides) {
    const Result result = tune("refused", 2, overrides);
    EXPECT_EQ(result.code, code) << result.out;
    EXPECT_FALSE(std::filesystem::exists(path("refused")));
    return result.err;
  };
  EXPECT_THAT(refusal(2, {"lora.targets=[\"q_proj\"]"}), HasSubstr("'q_proj' matches no linear layer"));
  EXPECT_THAT(refusal(3, {"lora.adapter=" + path("none")}), HasSubstr("no such file"));
  ASSERT_EQ(tune("tuned", 1, {"train.steps=1"}).code, 0);
  ASSERT_EQ(caravan({"export", path("tuned"), "--adapter", "--base", "my/base"}).code, 0);
  const std::string config = text_of(folder() / "tuned/adapter/adapter_config.json");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = config;
    changed.replace(changed.find(from), from.size(), to);
    file("tuned/adapter/adapter_config.json", changed);
    return refusal(3, {"lora.adapter=" + path("tuned/adapter")});
  };
  EXPECT_THAT(with("\"LORA\"", "\"IA3\""), HasSubstr("peft_type is \"IA3\""));
  EXPECT_THAT(with("\"bias\": \"none\"", "\"bias\": \"all\""), HasSubstr("sets bias"));
  EXPECT_THAT(with("\"r\": 4", "\"r\": \"4\""), HasSubstr("r is not a number"));
  EXPECT_THAT(with("{", "["), HasSubstr("is not a JSON object"));
  EXPECT_EQ(caravan({"export", path("base"), "--adapter", "--base", "my/base"}).code, 2);
  const Result unnamed = caravan({"export", path("tuned"), "--adapter"});
  EXPECT_EQ(unnamed.code, 2);
  EXPECT_THAT(unnamed.err, HasSubstr("names no base model"));
}

TEST_F(LoraTest, AdaptersOfExpertsLearnTheSameAndAreExported) {
  const std::vector<std::string> mixture{"model.kind=llama", "moe.experts=4", "moe.balance_loss=0.0", "train.steps=1",
                                         "data.tokenizer={train = 300}"};
  ASSERT_EQ(train("mixture", 1, set(mixture)).code, 0);
  ASSERT_EQ(caravan({"export", path("mixture")}).code, 0);
  const std::vector<std::string> keys{"train.init_from=" + path("mixture"), "lora.targets=[\"*\"]",
                                      "moe.balance_loss=0.0", "optimizer.schedule=constant"};
  ASSERT_EQ(tune("one", 1, keys).code, 0);
  ASSERT_EQ(tune("parts", 2, keys + std::vector<std::string>{"train.steps=3", "mesh.ep=2"}).code, 0);
  const Result resumed =
      caravan({"train", path("parts/recipe.toml"), "--ranks", "2", "--resume", "--set", "train.steps=6", "--set",
               "mesh.ep=1", "--set", "train.micro_batch=6", "--set", "data_parallel.technique=zero3"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NEAR(last_loss("parts"), last_loss("one"), 1e-4);

  ASSERT_EQ(caravan({"export", path("one")}).code, 0);
  ASSERT_EQ(caravan({"export", path("one"), "--adapter", "--base", "my/base"}).code, 0);
  EXPECT_THAT(text_of(folder() / "one/adapter/adapter_config.json"), HasSubstr("mlp.experts.gate_up_proj"));
  const auto generated = [&](const std::string& source) {
    const Result result =
        caravan({"generate", path(source), "--prompt", "The whale", "--temperature", "0", "--tokens", "8"});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  EXPECT_EQ(generated("one/huggingface"), generated("one"));
  const Result imported =
      caravan({"import", path("mixture/huggingface"), "--adapter", path("one/adapter"), "--out", path("imported")});
  ASSERT_EQ(imported.code, 0) << imported.err;
  EXPECT_EQ(generated("imported"), generated("one"));
}

/// Of a version in which experts had no adapters: with dropout and DoRA, which those of experts do not have.
TEST_F(LoraTest, AnEarlierRunOfAMixtureIsRead) {
  ASSERT_EQ(train("old", 1,
                  set({"model.kind=llama", "moe.experts=2", "lora.rank=2", "lora.targets=[\"*\"]", "lora.dropout=0.1",
                       "lora.dora=true", "lora.experts=false", "train.steps=1", "data.tokenizer=bytes"}))
                .code,
            0);
  testing::forget_experts(folder() / "old");
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"inspect", path("old")},
                                             {"report", path("old")},
                                             {"generate", path("old"), "--prompt", "The", "--tokens", "2"},
                                             {"export", path("old"), "--adapter", "--base", "my/base"}}) {
    const Result result = caravan(words);
    EXPECT_EQ(result.code, 0) << words[0] << ": " << result.err;
  }
}

/// Whether a gradient reaches a frozen unit is known once a backward has run.
TEST_F(LoraTest, AUnitThatNoGradientReachesIsNamed) {
  const Result result = train("run", 2,
                              set({"lora.rank=2", "lora.targets=[\"mlp.*\"]", "train.steps=1",
                                   "data_parallel.technique=zero3", "data_parallel.units=[\"blocks.0.attention\"]"}));
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_THAT(result.err, ::testing::AllOf(::testing::HasSubstr("blocks.0.attention: no gradient reaches it"),
                                           ::testing::HasSubstr("data_parallel.units")));
}

}  // namespace
}  // namespace caravan::lora_test
