// evaluate: the loss of a model on a text, and multiple-choice tasks.
#include <cmath>
#include <gmock/gmock.h>

#include "caravan/data/files/corpus.h"
#include "tests/command/command.h"

namespace caravan::evaluate_test {
namespace {

using ::testing::HasSubstr;

class EvaluateCommandTest : public CommandTest {
 protected:
  EvaluateCommandTest() {
    const Result trained = train("run", 2, set({"train.steps=30", "optimizer.lr=0.01", "train.eval_batches=0"}));
    EXPECT_EQ(trained.code, 0) << trained.err;
    const std::string text = text_of(path("text.txt"));
    file("validation.txt", std::string(split_text(text).validation.front()));
  }

  Result evaluate(const Words& more, const std::string& model = "run") const {
    Words words{"evaluate", path(model)};
    words.insert(words.end(), more.begin(), more.end());
    return caravan(words);
  }
  nlohmann::json json(Words more, const std::string& model = "run") const {
    more.emplace_back("--json");
    const Result result = evaluate(more, model);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return nlohmann::json::parse(result.out, nullptr, false);
  }
  void expect_refused(const Words& more, int code, const std::vector<std::string>& words) const {
    SCOPED_TRACE(::testing::PrintToString(more));
    const Result result = evaluate(more);
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_EQ(result.out, "");
    for (const std::string& word : words) EXPECT_THAT(result.err, HasSubstr(word));
    EXPECT_THAT(result.err, HasSubstr("do: "));
  }
  static double number(const nlohmann::json& line, const char* key) { return line.at(key).get<double>(); }
};

TEST_F(EvaluateCommandTest, GivesTheValidationLossOfTheRunOnAnyRanks) {
  const auto trained = log("run").back();
  const double loss = number(trained, "val_loss");
  for (const Words& more :
       {Words{}, Words{"--batch", "1"}, Words{"--ranks", "2"}, Words{"--ranks", "3", "--batch", "2"}}) {
    Words words{path("validation.txt")};
    words.insert(words.end(), more.begin(), more.end());
    const auto line = json(words);
    EXPECT_EQ(line.at("tokens"), text_of(path("validation.txt")).size() - 1);
    EXPECT_NEAR(number(line, "loss"), loss, 1e-6 * loss);
    EXPECT_NEAR(number(line, "bits_per_byte"), number(trained, "val_bits_per_byte"), 1e-5);
    EXPECT_DOUBLE_EQ(number(line, "perplexity"), std::exp(number(line, "loss")));
    EXPECT_EQ(line.at("context"), 32);
    EXPECT_EQ(line.at("stride"), 32);
  }
  ASSERT_EQ(caravan({"export", path("run")}).code, 0);
  EXPECT_NEAR(number(json({path("validation.txt")}, "run/huggingface"), "loss"), loss, 1e-6 * loss);
  const Result text = evaluate({path("validation.txt")});
  for (const char* label :
       {"model          ", "\ntokens         2999\n", "\nloss           ", "\nperplexity     ", "\nbits per byte  "}) {
    EXPECT_THAT(text.out, HasSubstr(label));
  }
}

TEST_F(EvaluateCommandTest, MoreTextBeforeATokenLowersTheLoss) {
  const std::string text = path("validation.txt");
  const auto whole = json({text}), narrow = json({text, "--context", "4"}), sliding = json({text, "--stride", "8"});
  EXPECT_EQ(narrow.at("context"), 4);
  EXPECT_EQ(sliding.at("stride"), 8);
  EXPECT_EQ(sliding.at("tokens"), whole.at("tokens"));
  EXPECT_GT(number(narrow, "loss"), number(whole, "loss"));
  EXPECT_LT(number(sliding, "loss"), number(whole, "loss"));
  EXPECT_NEAR(number(json({text, "--stride", "8", "--ranks", "2"}), "loss"), number(sliding, "loss"), 1e-6);
  const auto two = json({text, file("short.txt", "The whale.")});
  EXPECT_EQ(two.at("tokens").get<int64_t>(), whole.at("tokens").get<int64_t>() + 10);
  EXPECT_EQ(json({path("short.txt")}).at("tokens"), 9) << "shorter than the context";
  const std::string line = file("short.jsonl", "{\"text\": 1, \"body\": \"The whale.\"}\n");
  EXPECT_EQ(json({line, "--field", "body"}).at("loss"), json({path("short.txt")}).at("loss"));
}

TEST_F(EvaluateCommandTest, RefusesTextsItCannotEvaluate) {
  const std::string text = path("validation.txt");
  expect_refused({}, 2, {"no file is named", "--tasks FILE"});
  expect_refused({path("nothere.txt")}, 3, {"nothere.txt: no such file"});
  expect_refused({file("one.txt", "a"), "--ranks", "2"}, 3, {"one.txt: has 1 token, but an evaluation needs 2"});
  expect_refused({file("key.jsonl", "{\"body\": \"x\"}\n")}, 3, {"key.jsonl:1: has no field text, but body"});
  expect_refused({file("empty.txt", "")}, 3, {"empty.txt: is empty"});
  expect_refused({file("latin1.txt", "caf\xe9")}, 3, {"latin1.txt: is not UTF-8"});
  expect_refused({text, "--context", "33"}, 2, {"--context: 33 is more than the model's context of 32", "1 to 32"});
  expect_refused({text, "--stride", "33"}, 2, {"--stride: 33 is more than the context of 32"});
  expect_refused({text, "--ranks", "0"}, 2, {"--ranks: 0 ranks cannot be started"});
  expect_refused({text, "--batch", "0"}, 2, {"--batch", "'0' is not a whole number of at least 1"});
  expect_refused({text, "--skip-bad"}, 2, {"--skip-bad", "--tasks"});
  expect_refused({text, "--tasks", path("nothere.jsonl")}, 2, {"--tasks"});
  const Result missing = caravan({"evaluate", path("nothere"), text});
  EXPECT_EQ(missing.code, 3);
  EXPECT_THAT(missing.err, HasSubstr("nothere: is not there"));

  // A model with fewer rows than its tokenizer has tokens.
  ASSERT_EQ(train("small", 1, set({"train.steps=0", "data.tokenizer={train = 300}"})).code, 0);
  ASSERT_EQ(caravan({"export", path("small")}).code, 0);
  std::filesystem::copy_file(path("small/huggingface/tokenizer.json"), path("tokenizer.json"));
  ASSERT_EQ(caravan({"export", path("run")}).code, 0);
  std::filesystem::copy_file(path("tokenizer.json"), path("run/huggingface/tokenizer.json"),
                             std::filesystem::copy_options::overwrite_existing);
  const Result foreign = caravan({"evaluate", path("run/huggingface"), text});
  EXPECT_EQ(foreign.code, 3) << foreign.out;
  EXPECT_THAT(foreign.err, HasSubstr("tokenizer.json: has 300 tokens, the model 256"));
}

const std::string kQuestions =
    "{\"context\": \"The whale\", \"choices\": [\" is\", \" qqq\"], \"gold\": 0}\n"
    "{\"query\": \"Call me\", \"choices\": [\" zzzzzz\", \" a\", \" the sea\"], \"answer\": 1, \"id\": \"x\"}\n"
    "\n"
    "{\"context\": \"of the \", \"choices\": [\"ship\", \"Q\"], \"label\": 1}\n";

std::string first_question() { return kQuestions.substr(0, kQuestions.find('\n') + 1); }

/// Classifiers, models of pairs and of masked words are evaluated on what they learn, as training validates them.
class EvaluateTaskTest : public CommandTest {
 protected:
  nlohmann::json trained(const std::string& run, Words keys) const {
    keys.insert(keys.end(), {"train.steps=6", "train.eval_batches=0", "train.eval_every=6", "model.context=32"});
    const Result result = train(run, 1, set(keys));
    EXPECT_EQ(result.code, 0) << result.err;
    return log(run).back();
  }
  nlohmann::json evaluated(const Words& words) const {
    Words all{"evaluate"};
    all.insert(all.end(), words.begin(), words.end());
    all.emplace_back("--json");
    const Result result = caravan(all);
    EXPECT_EQ(result.code, 0) << result.err;
    return nlohmann::json::parse(result.out, nullptr, false);
  }
};

/// The rows of a run of whole documents are not those of a text to evaluate, also if the user names its format.
TEST_F(EvaluateTaskTest, TextIsWindowsUnlessTheUserAsksForOtherRows) {
  trained("packed", {"data.tokenizer={train = 300}", "data.pack=documents", "data.fill=best_fit"});
  const auto plain = evaluated({path("packed"), path("text.txt"), "--stride", "16"});
  EXPECT_EQ(evaluated({path("packed"), path("text.txt"), "--stride", "16", "--set", "data.format=text"}), plain);
  const auto packed = evaluated({path("packed"), path("text.txt"), "--set", "data.pack=documents"});
  EXPECT_EQ(packed.at("pack"), "documents");
  EXPECT_EQ(packed.at("fill"), "stream");
}

TEST_F(EvaluateTaskTest, ClassifiersHaveTheFiguresOfTheirValidation) {
  std::string all, held;
  for (int i = 0; i < 40; ++i) {
    const bool is_whale = i % 2 == 0;
    const nlohmann::json line{
        {"text", is_whale ? "a white whale" : "the black sea"}, {"kind", is_whale ? "whale" : "sea"}, {"label", 7}};
    all += line.dump() + "\n";
    if (i % 4 < 2) held += line.dump() + "\n";
  }
  file("all.jsonl", all);
  file("held.jsonl", held);
  for (const std::string run : {"gpt2", "bert"}) {
    const auto last = trained(
        run, {"model.kind=" + run, "model.tie_embeddings=true", "data.task=classify", "data.tokenizer={train=300}",
              "data.text=" + path("all.jsonl"), "data.validation=" + path("held.jsonl"), "data.label_field=kind"});
    ASSERT_EQ(caravan({"export", path(run)}).code, 0);
    const std::string folder = run + "/huggingface";
    for (const Words& words :
         {Words{path(run), path("held.jsonl")}, Words{path(run), path("held.jsonl"), "--ranks", "3"},
          Words{path(folder), path("held.jsonl"), "--set", "data.label_field=kind"}}) {
      const auto line = evaluated(words);
      EXPECT_EQ(line.at("task"), "classify");
      EXPECT_EQ(line.at("records"), 20);
      EXPECT_NEAR(line.at("loss").get<double>(), last.at("val_loss").get<double>(), 1e-5);
      EXPECT_EQ(line.at("accuracy"), last.at("val_accuracy"));
      EXPECT_EQ(line.at("macro_f1"), last.at("val_macro_f1"));
    }
  }
  const auto refused = [&](const Words& words) {
    Words line{"evaluate", path("bert"), path("held.jsonl")};
    line.insert(line.end(), words.begin(), words.end());
    const Result result = caravan(line);
    EXPECT_NE(result.code, 0);
    return result.err;
  };
  EXPECT_THAT(refused({"--set", "data.label_field=label"}),
              HasSubstr("records of one class only, 7, which is none of the model's: "));
  EXPECT_THAT(refused({"--set", "model.layers=3"}), HasSubstr("model.layers: is no key of [data]"));
  EXPECT_THAT(refused({"--set", "data.text=a"}), HasSubstr("data.text: is that of the model or of the files"));
  EXPECT_THAT(refused({"--set", R"(data.classes=["whale", "sea"])"}), HasSubstr("data.classes: is that of the model"));
  EXPECT_THAT(refused({"--set", "data.task=masked"}), HasSubstr("is \"masked\", and the model tells classes apart"));
  EXPECT_THAT(refused({"--stride", "4"}), HasSubstr("--stride: is of windows of one text"));
}

TEST_F(EvaluateTaskTest, TextsOfAnyFieldsAreAsked) {
  std::string lines, usual;
  for (const char* text : {"a white whale", "the black sea"}) {
    const nlohmann::json line{{"text", 7}, {"body", text}, {"after", "of the ship"}, {"pair", "not asked for"}};
    lines += line.dump() + "\n";
    usual += nlohmann::json{{"text", text}, {"pair", "of the ship"}}.dump() + "\n";
  }
  file("body.jsonl", lines);
  file("usual.jsonl", usual);
  file("kinds.jsonl", R"({"text": "a white whale", "kind": 1})"
                      "\n"
                      R"({"text": "the black sea", "kind": 2})"
                      "\n");
  trained("bert",
          {"model.kind=bert", "model.tie_embeddings=true", "data.task=classify", "data.tokenizer={train=300}",
           "data.text=" + path("kinds.jsonl"), "data.validation=" + path("kinds.jsonl"), "data.label_field=kind"});
  const auto classes = [&](const Words& more) {
    Words words{"classify", path("bert"), "--json", "--texts"};
    words.insert(words.end(), more.begin(), more.end());
    return caravan(words);
  };
  const Result pairs = classes({path("usual.jsonl")});
  ASSERT_EQ(pairs.code, 0) << pairs.err;
  EXPECT_EQ(classes({path("body.jsonl"), "--field", "body", "--pair-field", "after"}).out, pairs.out);
  const Result single = classes({path("body.jsonl"), "--field", "body"});
  EXPECT_FALSE(nlohmann::json::parse(single.out.substr(0, single.out.find('\n'))).contains("pair"));
  EXPECT_THAT(classes({path("body.jsonl"), "--field", "bodi"}).err, HasSubstr("body.jsonl:1: has no field bodi"));
  EXPECT_THAT(classes({path("usual.jsonl"), "--pair-field", "after"}).err, HasSubstr("has no field after"));
  EXPECT_THAT(classes({path("text.txt"), "--field", "body"}).err, HasSubstr("text.txt has no fields"));
  EXPECT_THAT(classes({path("text.txt"), "--pair-field", "pair"}).err, HasSubstr("--pair-field: "));
  EXPECT_THAT(classes({path("body.jsonl"), "--field", "body", "--pair-field", "body"}).err,
              HasSubstr("is the field of the first text"));
  const Result single_text = caravan({"classify", path("bert"), "--text", "a whale", "--field", "body"});
  EXPECT_THAT(single_text.err, HasSubstr("--texts"));
}

TEST_F(EvaluateTaskTest, TokensOfOtherTasksHaveTheLossOfTheirValidation) {
  std::string pairs;
  for (int i = 0; i < 30; ++i) {
    pairs += nlohmann::json{{"source", "a white whale"}, {"target", "whale white a"}}.dump() + "\n";
  }
  file("pairs.jsonl", pairs);
  const auto t5 = trained("t5", {"model.kind=t5", "model.layers=2", "model.encoder_layers=1", "model.source_context=32",
                                 "data.task=pairs", "data.tokenizer={train=300}", "data.text=" + path("pairs.jsonl"),
                                 "data.validation=" + path("pairs.jsonl")});
  ASSERT_EQ(caravan({"export", path("t5")}).code, 0);
  for (const Words& words : {Words{path("t5"), path("pairs.jsonl")},
                             Words{path("t5/huggingface"), path("pairs.jsonl"), "--set", "data.task=pairs"}}) {
    EXPECT_NEAR(evaluated(words).at("loss").get<double>(), t5.at("val_loss").get<double>(), 1e-5);
  }
  const auto bert = trained("bert", {"model.kind=bert", "model.tie_embeddings=true", "data.task=masked",
                                     "data.tokenizer={train=300}", "data.validation=" + path("text.txt")});
  const auto masked = evaluated({path("bert"), path("text.txt"), "--ranks", "2"});
  EXPECT_NEAR(masked.at("loss").get<double>(), bert.at("val_loss").get<double>(), 1e-5);
  EXPECT_EQ(masked.at("accuracy"), bert.at("val_accuracy"));
}

TEST_F(EvaluateCommandTest, TasksGiveTheSameFiguresOnAnyRanks) {
  const std::string tasks = file("tasks.jsonl", kQuestions);
  const auto one = json({"--tasks", tasks});
  EXPECT_EQ(one.at("questions"), 3);
  EXPECT_EQ(one.at("skipped"), 0);
  const double acc = number(one, "acc");
  EXPECT_NEAR(acc * 3, std::round(acc * 3), 1e-9);
  EXPECT_GE(acc, 1.0 / 3) << "a word of the text is likelier than qqq";
  EXPECT_NEAR(number(one, "acc_stderr"), std::sqrt(acc * (1 - acc) / 2), 1e-9);
  for (const char* ranks : {"2", "3"}) EXPECT_EQ(json({"--tasks", tasks, "--ranks", ranks}), one) << ranks;
  const Result text = evaluate({"--tasks", tasks});
  EXPECT_THAT(text.out, ::testing::AllOf(HasSubstr("questions      3\n"), HasSubstr("acc            "),
                                         HasSubstr("acc_norm       "), HasSubstr(" +- ")));
  EXPECT_TRUE(json({"--tasks", file("single.jsonl", first_question())}).at("acc_stderr").is_null());
}

TEST_F(EvaluateCommandTest, BadLinesOfTasksAreRefusedOrSkipped) {
  const std::string good = first_question();
  std::string lines = good;
  int count = 0;
  const auto bad = [&](const std::string& line, const std::string& what) {
    const std::string tasks = file("bad" + std::to_string(++count) + ".jsonl", good + line + "\n");
    expect_refused({"--tasks", tasks}, 3, {tasks + ":2: " + what});
    lines += line + "\n";
  };
  bad("{", "is not JSON from byte ");
  bad("[1]", "is an array, not an object");
  bad(R"({"choices": ["a", "b"], "gold": 0})", "the line has no field context or query");
  bad(R"({"context": 5, "choices": ["a", "b"], "gold": 0})", "context is 5, not a string");
  bad(R"({"context": "x", "gold": 0})", "the line has no field choices");
  bad(R"({"context": "x", "choices": ["a"], "gold": 0})", "choices is not a list of two or more");
  bad(R"({"context": "x", "choices": ["a", 7], "gold": 0})", "choices[1] is 7, not a string");
  bad(R"({"context": "x", "choices": ["a", ""], "gold": 0})", "choices one of them is empty");
  bad(R"({"context": "x", "choices": ["a", "b"]})", "the line has no field gold or answer or label");
  bad(R"({"context": "x", "choices": ["a", "b"], "gold": 2})", "gold is 2, not a whole number from 0 to 1");
  bad(R"({"context": "x", "choices": ["a", ")" + std::string(32, 'b') + R"("], "label": 0})",
      "continuation has 33 tokens, but the model sees 32 at once");
  bad(R"({"context": "", "choices": ["a", "b"], "gold": 0})", "context is empty, and the model has no token");
  const auto skipping = json({"--tasks", file("bad.jsonl", lines + good), "--skip-bad"});
  EXPECT_EQ(skipping.at("questions"), 2);
  EXPECT_EQ(skipping.at("skipped"), count);

  expect_refused({"--tasks", file("none.jsonl", "\n")}, 3, {"none.jsonl: holds no question"});
  expect_refused({"--tasks", file("all.jsonl", "{}\n{}\n"), "--skip-bad"}, 3,
                 {"all.jsonl: holds no question; 2 bad lines"});
  expect_refused({"--tasks", path("nothere.jsonl")}, 3, {"nothere.jsonl: cannot be opened"});
  expect_refused({"--tasks", file("t.jsonl", good), "--stride", "4"}, 2, {"--stride", "--tasks"});
  expect_refused({"--tasks", path("t.jsonl"), path("validation.txt")}, 2, {"texts", "--tasks"});
}

}  // namespace
}  // namespace caravan::evaluate_test
