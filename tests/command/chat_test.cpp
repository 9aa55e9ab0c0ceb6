// data.format = "chat": only what the assistant says is learned.
#include <gmock/gmock.h>

#include "tests/command/command.h"

namespace caravan::chat_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kTemplate =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

class ChatTest : public CommandTest {
 protected:
  /// Every question has the answer "whale 3 whale 3 ..", every second one after another question.
  std::string chats(int count) const {
    std::string lines;
    for (int i = 0; i < count; ++i) {
      nlohmann::json messages;
      const auto add = [&](const char* role, const std::string& content) {
        messages.push_back({{"role", role}, {"content", content}});
      };
      if (i % 2 == 0) {
        add("user", "What is " + std::to_string(7 * i) + "?");
        add("assistant", "A number.");
      }
      add("user", "Say " + std::string(static_cast<size_t>(i % 7), '!') + std::to_string(i));
      add("assistant", "whale " + std::to_string(i % 3) + " whale " + std::to_string(i % 3));
      lines += nlohmann::json{{"messages", messages}}.dump() + "\n";
    }
    return lines;
  }
  Result train_chats(const std::string& run, int ranks, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> overrides{"data.text=" + path("chats.jsonl"), "data.format=chat",
                                       "data.chat_template=" + path("chat.jinja"), "data.tokenizer={train = 300}"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return train(run, ranks, set(overrides));
  }
  void SetUp() override {
    file("chats.jsonl", chats(200));
    file("chat.jinja", kTemplate);
  }
  double last_loss(const std::string& run) const { return log(run).back().at("val_loss").get<double>(); }
};

TEST_F(ChatTest, LearnsTheSameOnAnyRanksAndResumesToTheSameBits) {
  for (const std::string pack : {"data.pack=none", "data.pack=documents"}) {
    const std::string name = pack.substr(10);
    const std::vector<std::string> common{pack, "train.steps=6", "optimizer.schedule=constant"};
    const auto with = [&](const std::string& more) {
      std::vector<std::string> all = common;
      all.push_back(more);
      return all;
    };
    const Result one = train_chats(name + "1", 1, common);
    ASSERT_EQ(one.code, 0) << one.err;
    for (const auto& [ranks, more] : std::vector<std::pair<int, std::string>>{
             {2, "comm.check=true"}, {3, "data_parallel.technique=zero2"}, {2, "mesh.cp=2"}, {2, "mesh.pp=2"}}) {
      const std::string run = name + more;
      ASSERT_EQ(train_chats(run, ranks, with(more)).code, 0) << more;
      EXPECT_NEAR(last_loss(run), last_loss(name + "1"), 1e-4) << more;  // six steps on sums in another order
    }
    ASSERT_EQ(train_chats(name + "parts", 2, with("train.steps=3")).code, 0);
    const Result resumed =
        caravan({"train", path(name + "parts/recipe.toml"), "--ranks", "2", "--resume", "--set", "train.steps=6"});
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_TRUE(tensors(folder() / (name + "parts") / "step_000006") ==
                tensors(folder() / (name + "comm.check=true") / "step_000006"));
  }
}

/// Answers follow from two tokens that change; questions do not follow from anything.
TEST_F(ChatTest, OnlyAnswersCount) {
  ASSERT_EQ(train_chats("masked", 2, {"train.steps=60", "optimizer.lr=0.01", "data.pack=documents"}).code, 0);
  EXPECT_LT(last_loss("masked"), 1.5);
  const Result inspected = caravan({"data", "inspect", path("masked/recipe.toml"), "--samples", "1"});
  ASSERT_EQ(inspected.code, 0) << inspected.err;
  EXPECT_THAT(inspected.out, AllOf(HasSubstr(" targets"), HasSubstr("whale")));
}

/// The note of the run and of `data inspect`, and the loss of `evaluate`, which has the rows of validation.
TEST_F(ChatTest, AreWholeUnlessTheRecipeSaysOtherwise) {
  file("held.jsonl", chats(30));
  const std::string held = "data.validation=" + path("held.jsonl");
  for (const std::string fill : {"best_fit", "stream"}) {
    const std::vector<std::string> common{"train.steps=4", "train.eval_batches=0", held};
    std::vector<std::string> set = common;
    if (fill == "stream") set.emplace_back("data.fill=stream");
    const Result trained = train_chats(fill, 2, set);
    ASSERT_EQ(trained.code, 0) << trained.err;
    const Result inspected = caravan({"data", "inspect", path(fill + "/recipe.toml")});
    for (const Result* result : {&trained, &inspected}) {
      EXPECT_EQ(result->out.find("chats.jsonl: 200 chats in ") != std::string::npos, fill == "best_fit") << result->out;
    }
    const Result evaluated = caravan({"evaluate", path(fill), path("held.jsonl"), "--json", "--ranks", "2"});
    ASSERT_EQ(evaluated.code, 0) << evaluated.err;
    const auto told = nlohmann::json::parse(evaluated.out);
    EXPECT_NEAR(told.at("loss").get<double>(), last_loss(fill), 1e-5) << fill;
    EXPECT_EQ(told.at("fill"), fill);
    EXPECT_EQ(told.at("pack"), "none");
  }
  EXPECT_EQ(train_chats("other", 1, {"data.fill=best"}).code, 2);
}

/// Streamed in one part, a run has the losses of one that is not.
TEST_F(ChatTest, AreStreamed) {
  file("held.jsonl", chats(30));
  const std::vector<std::string> common{"train.steps=4", "train.eval_batches=0",
                                        "data.validation=" + path("held.jsonl"), "data.pack=documents"};
  auto streamed = common;
  streamed.emplace_back("data.streaming=true");
  ASSERT_EQ(train_chats("whole", 2, common).code, 0);
  const Result trained = train_chats("streamed", 2, streamed);
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(log("streamed").back().at("val_loss"), log("whole").back().at("val_loss"));
  EXPECT_TRUE(tensors(folder() / "streamed/step_000004") == tensors(folder() / "whole/step_000004"));
  const Result inspected = caravan({"data", "inspect", path("streamed/recipe.toml"), "--samples", "1"});
  ASSERT_EQ(inspected.code, 0) << inspected.err;
  for (const Result* result : {&trained, &inspected}) {
    EXPECT_THAT(result->out, HasSubstr("chats.jsonl, its first part: 200 chats in "));
  }
  EXPECT_THAT(inspected.out, HasSubstr("whale"));
  file("mixed.toml", "[data]\nsources = [{path = \"" + path("chats.jsonl") + "\", weight = 30}, {path = \"" +
                         path("held.jsonl") + "\"}]\nvalidation = \"" + path("held.jsonl") +
                         "\"\nformat = \"chat\"\nchat_template = \"" + path("chat.jinja") +
                         "\"\ntokenizer = \"bytes\"\nstreaming = true\n");
  const Result mixed = caravan({"data", "inspect", path("mixed.toml")});
  ASSERT_EQ(mixed.code, 0) << mixed.err;
  for (const char* note : {"chats.jsonl, its first part: 200 chats in ", "held.jsonl, its first part: 30 chats in "}) {
    EXPECT_THAT(mixed.out, HasSubstr(note));
  }
  const Result evaluated = caravan({"evaluate", path("streamed"), path("held.jsonl")});
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_THAT(evaluated.out, HasSubstr("\nsequences      data.fill = \"best_fit\", data.pack = \"documents\"\n"));
  const Result text = caravan(
      {"evaluate", path("streamed"), path("text.txt"), "--set", "data.format=text", "--stride", "16", "--json"});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(nlohmann::json::parse(text.out).at("stride"), 16) << "windows of one text";
}

/// Nothing but their end can be learned of them.
TEST_F(ChatTest, EmptyAnswersAreNotedOrRefused) {
  const std::string empty = R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]})"
                            "\n";
  file("chats.jsonl", chats(200) + empty + empty);
  const Result noted = train_chats("noted", 2, {"train.steps=2"});
  ASSERT_EQ(noted.code, 0) << noted.err;
  EXPECT_THAT(noted.out, HasSubstr("2 of 302 answers of chats are empty: only what ends them is learned"));
  const std::string held = "data.validation=" + file("held.jsonl", chats(3) + empty);
  const Result streamed = train_chats("streamed", 2, {"train.steps=2", "data.streaming=true", held});
  ASSERT_EQ(streamed.code, 0) << streamed.err;
  EXPECT_THAT(streamed.out, AllOf(HasSubstr("chats.jsonl, its first part: 2 of 302 answers of chats are empty"),
                                  HasSubstr("the validation text: 1 of 6 answers of chats is empty")));
  std::string all;
  for (int i = 0; i < 30; ++i) all += empty;
  file("chats.jsonl", all);
  for (const std::string streaming : {"false", "true"}) {
    const Result refused =
        train_chats("refused" + streaming, 2, {"train.steps=2", "data.streaming=" + streaming, held});
    EXPECT_EQ(refused.code, 3);
    EXPECT_THAT(refused.err, HasSubstr("chats.jsonl: has chats whose answers are all empty: 30 of them"));
  }
}

TEST_F(ChatTest, BadChatsAreRefusedOrCounted) {
  const auto refusal = [&](const std::vector<std::string>& more = {}) {
    const Result result = train_chats("refused", 2, more);
    EXPECT_EQ(result.code, 3) << result.out << result.err;
    EXPECT_FALSE(std::filesystem::exists(path("refused")));
    return result.err;
  };
  const auto with_line = [&](const std::string& line) { file("chats.jsonl", chats(200) + line + "\n"); };
  with_line("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("chats.jsonl:201"), HasSubstr("no message of the assistant")));
  const Result skipped = train_chats("skipped", 2, {"data.skip_bad_lines=true"});
  EXPECT_EQ(skipped.code, 0) << skipped.err;
  EXPECT_THAT(skipped.out, HasSubstr("1 line is left out"));
  with_line("{\"messages\": \"a\"}");
  EXPECT_THAT(refusal(), HasSubstr("its messages are not a list"));
  with_line("{\"talk\": []}");
  EXPECT_THAT(refusal(), HasSubstr("has no field messages"));
  with_line("{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}]}");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("chats.jsonl:201"), HasSubstr("ShareGPT"), HasSubstr("jq -c")));
  with_line("no json");
  EXPECT_THAT(refusal(), HasSubstr("chats.jsonl:201"));
  file("chats.jsonl", chats(200));
  file("chat.jinja", "{% for m in messages %}");
  EXPECT_THAT(refusal(), HasSubstr("cannot be rendered"));
  EXPECT_THAT(refusal({"data.chat_template="}), HasSubstr("has no chat template"));
  file("plain.txt", "Call me Ishmael.");
  file("chat.jinja", kTemplate);
  EXPECT_THAT(refusal({"data.text=" + path("plain.txt")}), HasSubstr("has no JSON lines"));
  EXPECT_EQ(train_chats("refused", 2, {"data.format=text"}).code, 2) << "data.chat_template is not used";
}

/// System prompts and tools reach the template, and one that rewrites earlier answers has the last alone as targets.
TEST_F(ChatTest, SystemPromptsToolsAndRewrittenAnswers) {
  file("chat.jinja",
       "{% if tools[0].b != 1 or messages[0].role != 'system' %}{{ raise_exception('no tools') }}{% endif %}"
       "{% for m in messages %}{{ m.role[:1] }}:"
       "{% if m.role == 'assistant' and loop.last %}!{% endif %}{{ m.content }};{% endfor %}"
       "{% if add_generation_prompt %}a:{% endif %}");
  std::string lines;
  for (int i = 0; i < 20; ++i) {
    nlohmann::ordered_json messages{{{"role", "system"}, {"content", "S"}}};
    for (int turn = 0; turn <= i % 2; ++turn) {
      messages.push_back({{"role", "user"}, {"content", "q"}});
      messages.push_back({{"role", "assistant"}, {"content", "yes"}});
    }
    lines += nlohmann::ordered_json{{"messages", messages}, {"tools", {{{"b", 1}, {"a", 2}}}}}.dump() + "\n";
  }
  file("chats.jsonl", lines);
  const std::vector<std::string> bytes{"data.tokenizer=bytes", "train.steps=2", "model.context=64"};
  const Result trained = train_chats("run", 2, bytes);
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("10 chats learn their last answer only"));
}

/// A template that would kill a rank ends the run before it starts, also if bad lines are skipped.
TEST_F(ChatTest, AHostileTemplateIsRefused) {
  for (const auto& [source, budget] : std::vector<std::pair<std::string, std::string>>{
           {"{{ 1 % 0 }}", "divides by zero"},
           {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "of stack"},
           {std::string(kTemplate) + "{{ 1 % (messages | length - 4) }}", "divides by zero"}}) {
    file("chat.jinja", source);
    const Result result = train_chats("hostile", 2, {"data.skip_bad_lines=true"});
    EXPECT_EQ(result.code, 2) << result.out << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("chat.jinja: is a chat template that"), HasSubstr(budget)));
    EXPECT_FALSE(std::filesystem::exists(path("hostile")));
  }
}

/// The template of an imported model, kept in its runs.
TEST_F(ChatTest, TheModelsOwnTemplateIsUsed) {
  ASSERT_EQ(train("base", 1, set({"train.steps=1", "data.tokenizer={train = 300}"})).code, 0);
  ASSERT_EQ(caravan({"export", path("base")}).code, 0);
  file("base/huggingface/chat_template.jinja", kTemplate);
  const Words tune{"train",
                   "--ranks",
                   "2",
                   "--set",
                   "train.init_from=" + path("base/huggingface"),
                   "--set",
                   "data.format=chat",
                   "--set",
                   "data.text=" + path("chats.jsonl"),
                   "--set",
                   "train.steps=2",
                   "--set",
                   "lora.rank=2",
                   "--set",
                   "sample.tokens=0",
                   "--set",
                   "train.eval_batches=1",
                   "--set",
                   "checkpoint.dir=" + path("tuned")};
  const Result tuned = caravan(tune);
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  const Result resumed = caravan({"train", path("tuned/recipe.toml"), "--resume", "--set", "train.steps=4"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;

  // An import has chats whole, as its folder does.
  ASSERT_EQ(caravan({"import", path("base/huggingface"), "--out", path("imported")}).code, 0);
  for (const std::string model : {"imported", "base/huggingface"}) {
    const Result whole = caravan({"evaluate", path(model), path("chats.jsonl"), "--set", "data.format=chat"});
    ASSERT_EQ(whole.code, 0) << whole.err;
    EXPECT_THAT(whole.out, HasSubstr("data.fill = \"best_fit\"")) << model;
  }
}

}  // namespace
}  // namespace caravan::chat_test
