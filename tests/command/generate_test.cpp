// generate: several samples, prompts from a file, stop strings, the repetition penalty, and its JSON.
#include <gmock/gmock.h>
#include <numeric>
#include <regex>
#include <sstream>

#include "tests/command/command.h"

namespace caravan::generate_test {
namespace {

using ::testing::HasSubstr;

class GenerateCommandTest : public CommandTest {
 protected:
  GenerateCommandTest() {
    const Result trained = train("run", 1, set({"train.steps=30", "optimizer.lr=0.01"}));
    EXPECT_EQ(trained.code, 0) << trained.err;
  }

  Result generate(const Words& more) const {
    Words words{"generate", path("run"), "--tokens", "24", "--temperature", "1.2"};
    words.insert(words.end(), more.begin(), more.end());
    return caravan(words);
  }
  std::string out(const Words& more) const {
    const Result result = generate(more);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  }
  std::vector<nlohmann::json> lines(Words more) const {
    more.emplace_back("--json");
    std::istringstream text(out(more));
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(text, line);) all.push_back(nlohmann::json::parse(line, nullptr, false));
    return all;
  }
  void expect_refused(const Words& more, int code, const std::vector<std::string>& words) const {
    SCOPED_TRACE(::testing::PrintToString(more));
    const Result result = generate(more);
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_EQ(result.out, "");
    for (const std::string& word : words) EXPECT_THAT(result.err, HasSubstr(word));
    EXPECT_THAT(result.err, HasSubstr("do: "));
  }
};

TEST_F(GenerateCommandTest, SamplesAndPromptsOfAFile) {
  const std::string whale = out({"--prompt", "The whale"});
  const std::string sea = out({"--prompt", "A sea"});
  EXPECT_EQ(out({"--prompt", "The whale", "--samples", "1"}), whale);
  const std::string two = out({"--prompt", "The whale", "--samples", "2"});
  EXPECT_EQ(two.find("--- 0 ---\n" + whale + "--- 1 ---\nThe whale"), 0U) << two;
  EXPECT_EQ(two.find(whale, 20), std::string::npos) << "the second sample has a seed of its own";

  const std::string plain = file("prompts.txt", "The whale\r\n\nA sea");
  EXPECT_EQ(out({"--prompts", plain}), "--- 0 ---\n" + whale + "--- 1 ---\n" + sea);
  const std::string json = file("prompts.jsonl", "{\"prompt\": \"The whale\"}\n\n{\"prompt\": \"A sea\", \"id\": 3}\n");
  EXPECT_EQ(out({"--prompts", json}), out({"--prompts", plain}));

  const auto all = lines({"--prompts", json, "--samples", "2"});
  ASSERT_EQ(all.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(all[i].at("prompt"), i < 2 ? "The whale" : "A sea");
    EXPECT_EQ(all[i].at("sample"), i % 2);
    EXPECT_EQ(all[i].at("tokens"), 24);
    EXPECT_EQ(all[i].at("stopped"), "length");
  }
  EXPECT_EQ("The whale" + all[0].at("text").get<std::string>() + "\n", whale);
  EXPECT_EQ("--- 1 ---\nThe whale" + all[1].at("text").get<std::string>() + "\n", two.substr(two.find("--- 1")));
  EXPECT_EQ("A sea" + all[2].at("text").get<std::string>() + "\n", sea);
}

TEST_F(GenerateCommandTest, TimesArePrintedBesideTheTexts) {
  const Result timed = generate({"--prompt", "The whale", "--times"});
  EXPECT_EQ(timed.out, out({"--prompt", "The whale"}));
  const std::regex line(R"(caravan: prompts and first tokens: (\d+) tokens in [\d.]+ s \([\d.]+ tokens/s\); )"
                        R"(texts: (\d+) tokens in [\d.]+ s \([\d.]+ tokens/s\)\n)");
  std::smatch found;
  ASSERT_TRUE(std::regex_match(timed.err, found, line)) << timed.err;
  EXPECT_GT(std::stoi(found[1]), 0);
  EXPECT_EQ(std::stoi(found[2]), 23) << "24, of which the first comes with the prompt";
  expect_refused({"--chat", "--times"}, 2, {"--chat"});
}

TEST_F(GenerateCommandTest, RanksThatAreGivenDifferentOptionsAreRefused) {
  const Words all{"generate", path("run"), "--ranks", "2", "--prompt", "The whale", "--tokens"};
  Words first = all, second = all;
  first.emplace_back("3");
  second.emplace_back("4");
  for (const Result& rank : by_hand({first, second})) {
    EXPECT_EQ(rank.code, 2) << rank.err;
    EXPECT_THAT(rank.err, HasSubstr("--tokens: is 3 on rank 0 and 4 on rank 1"));
    EXPECT_EQ(rank.out, "");
  }
}

TEST_F(GenerateCommandTest, EndsBeforeAStopString) {
  const std::string text = lines({"--prompt", "The whale"}).at(0).at("text");
  const std::string stop = text.substr(6, 2);
  const auto cut = lines({"--prompt", "The whale", "--stop", "not there", "--stop", stop}).at(0);
  EXPECT_EQ(cut.at("text"), text.substr(0, text.find(stop)));
  EXPECT_EQ(cut.at("stopped"), "stop string");
  EXPECT_EQ(out({"--prompt", "The whale", "--stop", stop}), "The whale" + text.substr(0, text.find(stop)) + "\n");

  ASSERT_EQ(caravan({"export", path("run")}).code, 0);
  file("run/huggingface/generation_config.json", nlohmann::json{{"stop_strings", {stop}}}.dump());
  const Words theirs{"generate", path("run/huggingface"), "--tokens", "24", "--temperature", "1.2", "--prompt",
                     "The whale"};
  const Result result = caravan(theirs);
  EXPECT_EQ(result.out, "The whale" + text.substr(0, text.find(stop)) + "\n") << result.err;
  EXPECT_EQ(result.err, "");
}

TEST_F(GenerateCommandTest, TheRepetitionPenaltyOfTheModelIsUsedUnlessOneIsGiven) {
  const Words greedy{"--prompt", "The whale", "--temperature", "0", "--tokens", "60"};
  const auto with = [&](const std::string& source, const Words& more) {
    Words words{"generate", source};
    words.insert(words.end(), greedy.begin(), greedy.end());
    words.insert(words.end(), more.begin(), more.end());
    const Result result = caravan(words);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return result.out;
  };
  ASSERT_EQ(caravan({"export", path("run")}).code, 0);
  file("run/huggingface/generation_config.json", R"({"repetition_penalty": 1.4})");
  const std::string plain = with(path("run"), {});
  const std::string penalised = with(path("run"), {"--repetition-penalty", "1.4"});
  EXPECT_NE(plain, penalised);
  EXPECT_EQ(with(path("run/huggingface"), {}), penalised);
  EXPECT_EQ(with(path("run/huggingface"), {"--repetition-penalty", "1"}), plain);
}

TEST_F(GenerateCommandTest, BiasPenaltiesAndLogProbabilities) {
  const auto with = [&](const Words& more, const std::string& tokens = "24") {
    Words words{"generate", path("run"), "--prompt", "The whale", "--temperature", "0", "--json", "--tokens", tokens};
    words.insert(words.end(), more.begin(), more.end());
    const Result result = caravan(words);
    EXPECT_EQ(result.code, 0) << result.err;
    return nlohmann::json::parse(result.out, nullptr, false);
  };
  const std::string only_z(24, 'z');
  EXPECT_EQ(with({"--logit-bias", "z=100"}).at("text"), only_z);
  EXPECT_EQ(with({"--logit-bias", "122=100"}).at("text"), only_z);
  EXPECT_NE(with({"--logit-bias", "z=100", "--logit-bias", "z=-100"}).at("text"), only_z);
  EXPECT_NE(with({"--logit-bias", "z=50", "--frequency-penalty", "2"}, "60").at("text"), std::string(60, 'z'));
  const auto one = with({});
  const auto numbers = one.at("log_probabilities").get<std::vector<double>>();
  ASSERT_EQ(numbers.size(), 24U);
  for (const double number : numbers) EXPECT_LT(number, 0);
  for (const Words& split : {Words{"--ranks", "2"}, Words{"--ranks", "2", "--pp", "2"}}) {
    const auto others = with(split).at("log_probabilities").get<std::vector<double>>();
    ASSERT_EQ(others.size(), numbers.size());
    for (size_t i = 0; i < numbers.size(); ++i) EXPECT_NEAR(others[i], numbers[i], 1e-4);  // fp32, another order
  }
  EXPECT_NE(out({"--prompt", "The whale", "--min-p", "0.9"}), out({"--prompt", "The whale"}));
  EXPECT_NE(out({"--prompt", "The whale", "--typical-p", "0.2"}), out({"--prompt", "The whale"}));
  EXPECT_EQ(lines({"--prompt", "The whale", "--min-p", "1"}).at(0).at("text"), one.at("text"));

  expect_refused({"--min-p", "2"}, 2, {"min_p: 2 is out of range"});
  expect_refused({"--typical-p", "0"}, 2, {"typical_p: 0 is out of range"});
  expect_refused({"--presence-penalty", "3"}, 2, {"presence_penalty: 3 is out of range"});
  expect_refused({"--logit-bias", "z"}, 2, {"'z' is not TOKEN=VALUE"});
  expect_refused({"--logit-bias", "z=a"}, 2, {"'z=a' is not TOKEN=VALUE"});
  expect_refused({"--logit-bias", "zz=1"}, 2, {"a text of 2 tokens"});
  expect_refused({"--logit-bias", "300=1"}, 2, {"names a token that is not among 256"});
}

TEST_F(GenerateCommandTest, MinPOfTheModelIsUsedUnlessOneIsGiven) {
  ASSERT_EQ(caravan({"export", path("run")}).code, 0);
  file("run/huggingface/generation_config.json", R"({"min_p": 0.9, "typical_p": 1.0})");
  const Words theirs{"generate", path("run/huggingface"), "--tokens", "24", "--temperature", "1.2", "--prompt",
                     "The whale"};
  EXPECT_EQ(caravan(theirs).out, out({"--prompt", "The whale", "--min-p", "0.9"}));
  EXPECT_EQ(caravan(theirs).err, "");
  Words ours = theirs;
  ours.insert(ours.end(), {"--min-p", "0"});
  EXPECT_EQ(caravan(ours).out, out({"--prompt", "The whale"}));
}

TEST_F(GenerateCommandTest, ADefaultNarrowsNoOtherChoiceOfTokens) {
  const Words chosen{"--prompt", "The whale", "--min-p", "0.001"};
  const auto with_top_k = [&](const char* top_k) {
    Words words = chosen;
    words.insert(words.end(), {"--top-k", top_k});
    return out(words);
  };
  EXPECT_EQ(out(chosen), with_top_k("0"));
  EXPECT_NE(out(chosen), with_top_k("20"));
}

TEST_F(GenerateCommandTest, RanksThatShareTheModelPrintTheTextOfOne) {
  ASSERT_EQ(caravan({"export", path("run")}).code, 0);
  const std::string prompts = file("prompts.txt", "The whale\nA sea");
  for (const std::string source : {"run", "run/huggingface"}) {
    for (const Words& texts : {Words{"--prompt", "The whale"}, Words{"--prompts", prompts, "--samples", "2"},
                               Words{"--prompts", prompts, "--json"}}) {
      Words words{"generate", path(source), "--tokens", "32", "--temperature", "1.2"};
      words.insert(words.end(), texts.begin(), texts.end());
      const Result one = caravan(words);
      ASSERT_EQ(one.code, 0) << one.err;
      for (const Words& split : {Words{"--ranks", "2"}, Words{"--ranks", "2", "--pp", "2"}}) {
        Words many = words;
        many.insert(many.end(), split.begin(), split.end());
        const Result result = caravan(many);
        EXPECT_EQ(result.code, 0);
        // Sums in another order: see BiasPenaltiesAndLogProbabilities.
        const std::regex numbers(R"(,"log_probabilities":\[[^\]]*\])");
        EXPECT_EQ(std::regex_replace(result.out, numbers, ""), std::regex_replace(one.out, numbers, ""));
        EXPECT_EQ(result.err, "");
      }
    }
  }
  const std::string input = file("input.txt", "The whale\n");
  const Words words{"generate", path("run"), "--temperature", "0", "--prompt", "-"};
  Words many = words;
  many.insert(many.end(), {"--ranks", "2"});
  EXPECT_EQ(caravan(many, input).out, caravan(words, input).out);
}

TEST_F(GenerateCommandTest, ABatchPrintsTheTextsOfOneAfterAnother) {
  std::string many;
  for (int i = 0; i < 20; ++i) many += std::string(static_cast<size_t>(1 + i % 7), static_cast<char>('a' + i)) + "\n";
  const std::string prompts = file("many.txt", many);
  for (const Words& form : {Words{}, Words{"--json"}}) {
    Words words{"--prompts", prompts, "--samples", "2", "--stop", "e"};
    words.insert(words.end(), form.begin(), form.end());
    const auto with = [&](const char* batch) {
      Words all = words;
      all.insert(all.end(), {"--batch", batch});
      return out(all);
    };
    const std::string one = with("1");
    EXPECT_EQ(with("3"), one);
    EXPECT_EQ(with("40"), one);
    EXPECT_EQ(out(words), one);
  }
  expect_refused({"--batch", "0"}, 2, {"--batch", "'0' is not a whole number of at least 1"});
}

TEST_F(GenerateCommandTest, ADraftPrintsTheSameText) {
  const Result other = train("draft", 1, set({"train.steps=20", "optimizer.lr=0.01", "model.layers=1"}));
  ASSERT_EQ(other.code, 0) << other.err;
  const std::string plain = out({"--prompt", "The whale"});
  for (const char* tokens : {"1", "4", "15"}) {
    EXPECT_EQ(out({"--prompt", "The whale", "--draft", path("draft"), "--draft-tokens", tokens}), plain);
  }
  EXPECT_EQ(out({"--prompt", "The whale", "--draft", path("draft"), "--ranks", "2"}), plain);
  expect_refused({"--draft", path("draft"), "--draft-tokens", "16"}, 2, {"draft_tokens: 16 is out of range"});
  expect_refused({"--draft", path("nothere")}, 3, {"nothere"});
  expect_refused({"--draft-tokens", "3"}, 2, {"--draft"});
  ASSERT_EQ(caravan({"export", path("draft")}).code, 0);
  auto tokenizer = nlohmann::json::parse(text_of(folder() / "draft/huggingface/tokenizer.json"), nullptr, false);
  tokenizer["normalizer"] = {{"type", "Lowercase"}};
  file("draft/huggingface/tokenizer.json", tokenizer.dump());
  expect_refused({"--draft", path("draft/huggingface")}, 2, {"has another tokenizer than"});
}

TEST_F(GenerateCommandTest, BeamsFindALikelierText) {
  const auto with = [&](const Words& more) {
    Words words{"generate", path("run"), "--prompt", "The whale", "--json", "--tokens", "20"};
    words.insert(words.end(), more.begin(), more.end());
    const Result result = caravan(words);
    EXPECT_EQ(result.code, 0) << result.err;
    const auto line = nlohmann::json::parse(result.out, nullptr, false);
    const auto numbers = line.at("log_probabilities").get<std::vector<double>>();
    return std::accumulate(numbers.begin(), numbers.end(), 0.0);
  };
  EXPECT_GE(with({"--beams", "4"}), with({"--temperature", "0"}) - 1e-3);
  EXPECT_NEAR(with({"--beams", "4", "--ranks", "2"}), with({"--beams", "4"}), 1e-3);  // fp32, another order
  expect_refused({"--beams", "2"}, 2, {"--beams: searches the likeliest text", "--temperature"});
  expect_refused({"--length-penalty", "2"}, 2, {"--beams"});
}

TEST_F(GenerateCommandTest, WeightsIn16Bits) {
  const std::string text = out({"--prompt", "The whale", "--precision", "bf16"});
  EXPECT_EQ(text.find("The whale"), 0U);
  EXPECT_EQ(out({"--prompt", "The whale", "--precision", "bf16", "--batch", "1"}), text);
  expect_refused({"--precision", "int8"}, 2, {"--precision", "bf16"});
}

TEST_F(GenerateCommandTest, RefusesRanksThatCannotShareTheModel) {
  expect_refused({"--ranks", "3"}, 2, {"3 ranks share 2 heads", "use tp = 2"});
  expect_refused({"--ranks", "2", "--ep", "2"}, 2, {"2 ranks share the experts of a model that has none"});
  expect_refused({"--ranks", "2", "--tp", "1"}, 2, {"there are 2 ranks", "or tp = 2"});
  expect_refused({"--tp", "2"}, 2, {"there is 1 rank", "use 2 ranks (--ranks 2)"});
  expect_refused({"--ranks", "3", "--pp", "3"}, 2, {"3 stages for 2 layers", "use pp = 2"});
  expect_refused({"--ranks", "0"}, 2, {"--ranks"});
  expect_refused({"--tp", "0"}, 2, {"--tp", "'0' is not a whole number of at least 1"});
}

TEST_F(GenerateCommandTest, APromptLongerThanTheContextIsTruncatedOnRequestOnly) {
  const std::string last(32, 'z');
  expect_refused({"--prompt", "abc" + last}, 2, {"has 35 tokens", "the context of the model is 32", "--truncate"});
  const std::string prompts = file("prompts.txt", "a\nabc" + last);
  expect_refused({"--prompts", prompts}, 2, {"has 35 tokens", "prompts.txt:2"});
  const auto cut = lines({"--prompt", "abc" + last, "--truncate", "--top-k", "1"}).at(0);
  const auto whole = lines({"--prompt", last, "--top-k", "1"}).at(0);
  EXPECT_EQ(cut.at("text"), whole.at("text"));
}

TEST_F(GenerateCommandTest, RefusesBadInput) {
  expect_refused({"--repetition-penalty", "0"}, 2, {"repetition_penalty: 0 is out of range"});
  expect_refused({"--repetition-penalty", "-1"}, 2, {"repetition_penalty: -1 is out of range"});
  expect_refused({"--samples", "0"}, 2, {"--samples: 0 is too few", "use 1 or more"});
  expect_refused({"--stop", ""}, 2, {"--stop", "must not be empty"});
  expect_refused({"--stop", "\xff"}, 2, {"stop string: is not UTF-8"});
  expect_refused({"--prompts", ""}, 2, {"--prompts", "must not be empty"});
  expect_refused({"--prompts", file("p.txt", "a"), "--prompt", "b"}, 2, {"--prompt", "--prompts"});
  expect_refused({"--prompts", path("nothere.txt")}, 3, {"nothere.txt: cannot be opened"});
  expect_refused({"--prompts", file("empty.txt", "\n\n")}, 3, {"empty.txt: holds no prompt", "one prompt per line"});
  expect_refused({"--prompts", file("empty.jsonl", "\n")}, 3, {"empty.jsonl: holds no prompt"});
  expect_refused({"--prompts", file("latin1.txt", "a\ncaf\xe9\n")}, 3, {"latin1.txt: is not UTF-8"});
  const std::string good = "{\"prompt\": \"a\"}\n";
  expect_refused({"--prompts", file("key.jsonl", good + "{\"text\": \"a\"}\n")}, 3,
                 {"key.jsonl:2: has no field prompt, but text"});
  expect_refused({"--prompts", file("type.jsonl", good + "\n{\"prompt\": 5}\n")}, 3,
                 {"type.jsonl:3: its field prompt is a number, not a string"});
  expect_refused({"--prompts", file("broken.jsonl", good + "{\"prompt\": \"a\"")}, 3,
                 {"broken.jsonl:2: is not JSON from byte "});
  expect_refused({"--prompts", file("array.jsonl", "[1]\n")}, 3, {"array.jsonl:1: is an array, not an object"});
}

}  // namespace
}  // namespace caravan::generate_test
