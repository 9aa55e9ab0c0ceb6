// What is made of a trained model: export, import, generate; and tokenizer and inspect.
#include <gmock/gmock.h>
#include <regex>

#include "tests/command/command.h"

namespace caravan {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class ModelsTest : public CommandTest {
 protected:
  std::string greedy(const std::string& source) const {
    const Result result =
        caravan({"generate", source, "--prompt", "The whale", "--tokens", "24", "--temperature", "0"});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, StartsWith("The whale"));
    EXPECT_GT(result.out.size(), std::string("The whale").size() + 10);
    return result.out;
  }
  /// The number after `label` in what inspect printed.
  static double number(const std::string& text, const std::string& label) {
    std::smatch found;
    const std::regex pattern(label + " +([0-9]+)");
    if (!std::regex_search(text, found, pattern)) {
      ADD_FAILURE() << label << " is not in:\n" << text;
      return -1;
    }
    return std::stod(found[1]);
  }
};

class Kinds : public ModelsTest, public testing::WithParamInterface<std::vector<std::string>> {};

TEST_P(Kinds, ExportAndImportKeepEveryBit) {
  std::vector<std::string> overrides = GetParam();
  overrides.insert(overrides.end(), {"optimizer.lr=0.01", "train.steps=30"});
  ASSERT_EQ(train("run", 2, set(overrides)).code, 0);
  const Result exported = caravan({"export", path("run")});
  ASSERT_EQ(exported.code, 0) << exported.err;
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"}) {
    EXPECT_TRUE(std::filesystem::exists(path("run/huggingface/") + name)) << name;
  }
  const Result imported = caravan({"import", path("run/huggingface"), "--out", path("imported")});
  ASSERT_EQ(imported.code, 0) << imported.err;
  auto parameters = tensors(folder() / "run/step_000030");
  std::erase_if(parameters, [](const auto& entry) { return entry.first.starts_with("optimizer."); });
  EXPECT_TRUE(tensors(folder() / "imported/step_000000") == parameters);

  const std::string text = greedy(path("run"));
  EXPECT_EQ(greedy(path("run/huggingface")), text);
  EXPECT_EQ(greedy(path("imported")), text);
  EXPECT_EQ(greedy(path("run/step_000030")), text);

  const Result again = caravan({"export", path("again"), "--from", path("imported")});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_TRUE(tensors(folder() / "again") == tensors(folder() / "run/huggingface"));
}

INSTANTIATE_TEST_SUITE_P(All, Kinds,
                         testing::Values(std::vector<std::string>{"model.kind=gpt2"},
                                         std::vector<std::string>{"model.kind=llama", "model.kv_heads=1",
                                                                  "model.tie_embeddings=false",
                                                                  "data.tokenizer={train = 300}"}));

TEST_F(ModelsTest, AnImportedModelTrainsOn) {
  ASSERT_EQ(train("run", 1).code, 0);
  ASSERT_EQ(caravan({"export", path("run")}).code, 0);
  ASSERT_EQ(caravan({"import", path("run/huggingface"), "--out", path("imported")}).code, 0);
  Words words{"train", path("imported/recipe.toml"), "--ranks", "2", "--resume"};
  for (const std::string& word :
       set({"data.text=" + path("text.txt"), "train.steps=2", "train.global_batch=4", "sample.tokens=0"})) {
    words.push_back(word);
  }
  const Result more = caravan(words);
  ASSERT_EQ(more.code, 0) << more.err;
  EXPECT_EQ(log("imported").size(), 2U);
  EXPECT_LT(log("imported").front().at("loss"), log("run").front().at("loss"));
}

TEST_F(ModelsTest, GenerateDrawsTheSameForASeed) {
  ASSERT_EQ(train("run", 1).code, 0);
  const auto draw = [this](const char* seed) {
    const Result result = caravan({"generate", path("run"), "--prompt", "Ahab", "--tokens", "20", "--top-k", "20",
                                   "--top-p", "0.9", "--seed", seed});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  EXPECT_EQ(draw("1"), draw("1"));
  EXPECT_NE(draw("1"), draw("2"));
  const Result piped = caravan({"generate", path("run"), "--tokens", "0"}, file("prompt.txt", "from a pipe\n"));
  EXPECT_EQ(piped.out, "from a pipe\n");
}

TEST_F(ModelsTest, GenerateAndImportRefuse) {
  ASSERT_EQ(train("run", 1, set({"train.steps=0"})).code, 0);
  const auto refused = [this](const Words& words, int code, const std::string& word) {
    const Result result = caravan(words);
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_THAT(result.err, testing::AllOf(HasSubstr(word), HasSubstr("do: ")));
  };
  const std::string source = path("run");
  refused({"generate", source, "--temperature", "-1"}, 2, "temperature: -1 is out of range");
  refused({"generate", source, "--top-p", "0"}, 2, "top_p: 0 is out of range");
  refused({"generate", source, "--tokens", "-1"}, 2, "--tokens: -1 is below 0");
  refused({"generate", source, "--prompt", ""}, 2, "prompt: is empty");
  refused({"generate", source, "--prompt", "\xff"}, 3, "is not UTF-8");
  refused({"import", path("nothere")}, 3, "nothere/config.json");
  ASSERT_EQ(caravan({"export", path("run")}).code, 0);
  file("run/huggingface/config.json", R"({"model_type": "bert"})");
  refused({"import", path("run/huggingface")}, 3, "model_type: is 'bert'");
  std::filesystem::remove(path("run/tokenizer.json"));
  refused({"generate", source}, 3, "run/tokenizer.json: cannot be opened");
}

TEST_F(ModelsTest, TokenizerGoesThereAndBack) {
  const Result made =
      caravan({"tokenizer", "train", path("text.txt"), "--vocabulary", "400", "--out", path("tokens.json")});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("400 tokens"));
  const std::string text = "Call me Ishmael.\n  na\xc3\xafve \xe6\x9d\xb1\xe4\xba\xac \xf0\x9f\x90\x8b, 1851\n";
  for (const std::string& tokenizer : {std::string("bytes"), path("tokens.json")}) {
    const Result encoded = caravan({"tokenizer", "encode", tokenizer, text});
    ASSERT_EQ(encoded.code, 0) << encoded.err;
    const auto ids = std::count(encoded.out.begin(), encoded.out.end(), ' ') + 1;
    EXPECT_LE(static_cast<size_t>(ids), text.size());
    EXPECT_EQ(static_cast<size_t>(ids) == text.size(), tokenizer == "bytes");
    EXPECT_EQ(caravan({"tokenizer", "encode", tokenizer}, file("in.txt", text)).out, encoded.out);
    const Result decoded = caravan({"tokenizer", "decode", tokenizer}, file("ids.txt", encoded.out));
    EXPECT_EQ(decoded.out, text + "\n") << decoded.err;
  }
  for (const auto& [ids, code] :
       {std::pair{"1 2 x", 2}, std::pair{"1.5", 2}, std::pair{"99999", 3}, std::pair{"-5", 3}}) {
    const Result refused = caravan({"tokenizer", "decode", path("tokens.json"), ids});
    EXPECT_EQ(refused.code, code) << ids << "\n" << refused.err;
  }
  EXPECT_EQ(caravan({"tokenizer", "train", path("text.txt"), "--vocabulary", "5", "--out", path("x.json")}).code, 2);
  EXPECT_EQ(caravan({"tokenizer", "encode", "bytes", "\xff"}).code, 3);
  EXPECT_EQ(caravan({"tokenizer", "encode", path("nothere"), "x"}).code, 3);
  EXPECT_FALSE(std::filesystem::exists(path("x.json")));
}

TEST_F(ModelsTest, InspectPrintsWhatTheRunDoes) {
  for (const int ranks : {2, 3}) {
    const std::string run = "run" + std::to_string(ranks);
    Words words = tiny(run, ranks, set({"train.micro_batch=2"}));
    const Result trained = caravan(words);
    ASSERT_EQ(trained.code, 0) << trained.err;
    words.front() = "inspect";
    const Result inspected = caravan(words);
    ASSERT_EQ(inspected.code, 0) << inspected.err;
    const std::string equation = "global_batch 12 = dp " + std::to_string(ranks) + " x micro_batch 2 x accumulation " +
                                 std::to_string(6 / ranks);
    EXPECT_THAT(inspected.out, HasSubstr(equation));
    EXPECT_THAT(trained.out, HasSubstr(equation));
    const auto line = log(run).back();
    EXPECT_EQ(number(inspected.out, "tokens of the run"), line.at("tokens").get<double>());
    // A flat buffer has each of its 28 tensors on 64 bytes, and two small sums go with it.
    const double sent = line.at("bytes_sent").get<double>() - number(inspected.out, R"(gradients \(all-reduce\))");
    EXPECT_GE(sent, 0);
    EXPECT_LT(sent, 2 * 64 * (28 + 2));
    const double flops = line.at("model_flops_per_second").get<double>() / line.at("tokens_per_second").get<double>();
    EXPECT_NEAR(number(inspected.out, "a token"), flops, 1);
    const size_t parameters = [&] {
      size_t bytes = 0;
      for (const auto& [name, value] : tensors(folder() / run / "step_000006")) {
        if (!name.starts_with("optimizer.")) bytes += value.size();
      }
      return bytes / 4;
    }();
    EXPECT_EQ(number(inspected.out, "  parameters"), static_cast<double>(parameters));
    // What it prints as the recipe is the recipe.
    const std::string toml = inspected.out.substr(0, inspected.out.find("\n# "));
    const Result reread = caravan({"inspect", file("printed.toml", toml), "--ranks", std::to_string(ranks)});
    EXPECT_EQ(reread.out, inspected.out) << reread.err;
  }
}

TEST_F(ModelsTest, InspectHoldsHugeNumbers) {
  const Result huge =
      caravan({"inspect", "--ranks", "1", "--set", "train.steps=1000000000000000000", "train.global_batch=1073741824"});
  ASSERT_EQ(huge.code, 0) << huge.err;
  EXPECT_GT(number(huge.out, "tokens of the run"), 1e28);
  EXPECT_EQ(huge.out.find(" -"), std::string::npos) << huge.out;
}

}  // namespace
}  // namespace caravan
