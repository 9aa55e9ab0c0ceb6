// generate with a model that has a chat template: prompts are messages, and --chat is a conversation.
#include <algorithm>
#include <gmock/gmock.h>
#include <iterator>
#include <sstream>

#include "tests/command/command.h"

namespace caravan::generate_chat_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kTemplate =
    "{% for m in messages %}{% if m.content == 'refuse' %}{{ raise_exception('no such word') }}{% endif %}"
    "<{{ m.role[:1] }}>{{ m.content }};{% endfor %}{% if tools %}{{ tools | length }}{% endif %}"
    "{% if add_generation_prompt %}<a>{% endif %}";

class GenerateChatTest : public CommandTest {
 protected:
  /// A run of bytes that has learned to answer "yes.", and nothing else.
  void train_chats() const {
    std::string lines;
    for (int i = 0; i < 120; ++i) {
      const nlohmann::json messages{{{"role", "user"}, {"content", "q" + std::to_string(i % 10)}},
                                    {{"role", "assistant"}, {"content", "yes."}}};
      lines += nlohmann::json{{"messages", messages}}.dump() + "\n";
    }
    file("chats.jsonl", lines);
    file("chat.jinja", kTemplate);
    const Result trained =
        train("run", 1,
              set({"data.text=" + path("chats.jsonl"), "data.format=chat", "data.pack=documents",
                   "data.chat_template=" + path("chat.jinja"), "train.steps=60", "optimizer.lr=0.01"}));
    ASSERT_EQ(trained.code, 0) << trained.err;
  }
  Result generate(const std::string& source, const Words& more, const std::string& input = "") const {
    Words words{"generate", path(source), "--temperature", "0"};
    words.insert(words.end(), more.begin(), more.end());
    return caravan(words, input);
  }
  std::string out(const Words& more, const std::string& source = "run") const {
    const Result result = generate(source, more);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  }
  void expect_refused(const Words& more, int code, const std::string& what, const std::string& source = "run") const {
    const Result result = generate(source, more);
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, AllOf(HasSubstr(what), HasSubstr("do: ")));
  }
};

TEST_F(GenerateChatTest, APromptIsWhatAUserSays) {
  train_chats();
  EXPECT_EQ(out({"--prompt", "q7"}), "yes.\n");
  EXPECT_EQ(out({"--prompt", "q7", "--ranks", "2"}), "yes.\n");
  EXPECT_EQ(out({"--prompt", "q7", "--ranks", "2", "--pp", "2"}), "yes.\n");
  EXPECT_EQ(out({"--raw", "--prompt", "<u>q7;<a>", "--tokens", "5"}), "<u>q7;<a>yes.;\n");
  ASSERT_EQ(caravan({"export", path("run")}).code, 0);
  EXPECT_EQ(out({"--prompt", "q7"}, "run/huggingface"), "yes.\n");
  const Result texts = caravan({"evaluate", path("run/huggingface"), path("chats.jsonl")});
  EXPECT_EQ(texts.code, 3) << texts.out;
  EXPECT_THAT(texts.err, AllOf(HasSubstr("the messages of a chat"), HasSubstr("--set data.format=chat")));
  const Result chats = caravan({"evaluate", path("run/huggingface"), path("chats.jsonl"), "--set", "data.format=chat"});
  EXPECT_EQ(chats.code, 0) << chats.err;
  EXPECT_THAT(chats.out, HasSubstr("loss"));
  const Result imported = caravan({"import", path("run/huggingface"), "--out", path("imported")});
  ASSERT_EQ(imported.code, 0) << imported.err;
  EXPECT_THAT(imported.out, HasSubstr("use it:    caravan generate " + path("imported") + " --chat\n"));
  // What it advises works.
  const size_t advice = imported.out.find("caravan train ");
  ASSERT_NE(advice, std::string::npos);
  std::istringstream words(imported.out.substr(advice + std::string("caravan ").size()));
  Words training{std::istream_iterator<std::string>(words), {}};
  std::ranges::replace(training, std::string("data.text=FILE"), "data.text=" + path("chats.jsonl"));
  EXPECT_THAT(training, ::testing::Contains("model.context=32"));
  training.insert(training.end(), {"train.steps=1", "sample.tokens=0", "checkpoint.dir=" + path("again")});
  const Result again = caravan(training);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(out({"--prompt", "q7"}, "imported"), "yes.\n");

  const std::string file = this->file(
      "chats.jsonl", R"({"prompt": "q1"})"
                     "\n"
                     R"({"messages": [{"role": "user", "content": "q2"}, {"role": "assistant", "content": "no."}, )"
                     R"({"role": "user", "content": "q3"}], "tools": [{"b": 1, "a": 2}]})"
                     "\n");
  EXPECT_EQ(out({"--prompts", file}), "--- 0 ---\nyes.\n--- 1 ---\nyes.\n");
  std::istringstream lines(out({"--prompts", file, "--json", "--samples", "2"}));
  std::vector<nlohmann::json> all;
  for (std::string line; std::getline(lines, line);) all.push_back(nlohmann::json::parse(line, nullptr, false));
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[1].at("prompt"), "q1");
  EXPECT_FALSE(all[1].contains("messages"));
  EXPECT_EQ(all[3].at("messages").at(1).at("content"), "no.");
  EXPECT_FALSE(all[3].contains("prompt"));
  EXPECT_EQ(all[3].at("sample"), 1);
  EXPECT_EQ(all[3].at("text"), "yes.");
  EXPECT_EQ(all[3].at("stopped"), "stop string");

  // What the model is given, by its number of tokens: the context is 32.
  const std::string many(40, 'q');
  expect_refused({"--prompt", many}, 2, "has 47 tokens");
  expect_refused({"--prompt", many, "--system", "ab"}, 2, "has 53 tokens");
  expect_refused({"--prompts", this->file("long.jsonl", R"({"messages": [{"role": "user", "content": ")" + many +
                                                            R"("}], "tools": [1]})")},
                 2, "has 48 tokens");
  const std::string refused = R"({"messages": [{"role": "user", "content": "refuse"}]})";
  expect_refused({"--prompts", this->file("refused.jsonl", refused), "--ranks", "2"}, 3, "refused.jsonl:1");
  expect_refused({"--prompt", "refuse"}, 3, "no such word");
  expect_refused({"--prompts", file, "--raw"}, 2, "continues texts, and these are messages");
  const std::string with_system =
      R"({"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]})";
  expect_refused({"--prompts", this->file("system.jsonl", with_system), "--system", "c"}, 2,
                 "is a second message of the system");
}

TEST_F(GenerateChatTest, WithoutATemplateMessagesAreRefused) {
  ASSERT_EQ(train("run", 1, set({"train.steps=0"})).code, 0);
  EXPECT_EQ(out({"--prompt", "q7", "--tokens", "0"}), "q7\n");
  EXPECT_EQ(out({"--prompt", "q7", "--tokens", "0", "--raw"}), "q7\n");
  const std::string chat = file("chat.jsonl", R"({"messages": [{"role": "user", "content": "b"}]})");
  expect_refused({"--prompts", chat}, 3, "has no chat template");
  expect_refused({"--prompt", "q7", "--system", "a"}, 3, "has no chat template");
  expect_refused({"--chat"}, 3, "has no chat template");
  expect_refused({"--chat", "--prompt", "a"}, 2, "--chat");
}

TEST_F(GenerateChatTest, AConversationIsKeptUntilItIsReset) {
  train_chats();
  const std::string lines = file("lines.txt", "q1\n\nq2\nq3\n/reset\nq4\nrefuse\nq5");
  for (const Words& split : {Words{}, Words{"--ranks", "2"}}) {
    Words words{"--chat"};
    words.insert(words.end(), split.begin(), split.end());
    // 6 bytes of a prompt, 3 before its answer and 5 of that: the third exceeds the context of 32.
    const Result kept = generate("run", words, lines);
    EXPECT_EQ(kept.code, 0) << kept.err;
    EXPECT_EQ(kept.out, "yes.\nyes.\nyes.\nyes.\n");
    EXPECT_THAT(kept.err, AllOf(HasSubstr("the conversation has 37 tokens with this line, and the context of the model "
                                          "is 32: /reset forgets it"),
                                HasSubstr("no such word")));
    words.emplace_back("--truncate");
    const Result truncated = generate("run", words, lines);
    EXPECT_EQ(truncated.code, 0) << truncated.err;
    EXPECT_EQ(truncated.out, "yes.\nyes.\nyes.\nyes.\nyes.\n");
    EXPECT_THAT(truncated.err, Not(HasSubstr("context")));
  }
  const Result left = generate("run", {"--chat"}, file("exit.txt", "q1\n/exit\nq2\n"));
  EXPECT_EQ(left.code, 0) << left.err;
  EXPECT_EQ(left.out, "yes.\n");
  // A path, several words and a space before a slash are messages.
  const Result other = generate("run", {"--chat"}, file("other.txt", "/rest\n/a/b\n/reset\n /ex\n"));
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_EQ(other.out, "yes.\nyes.\n");
  EXPECT_THAT(other.err, AllOf(HasSubstr("/rest is not a command: the nearest is /reset"), Not(HasSubstr("/ex"))));
  const Result system = generate("run", {"--chat", "--system", std::string(40, 's')}, lines);
  EXPECT_EQ(system.out, "");
  EXPECT_THAT(system.err, HasSubstr("the conversation has 53 tokens"));
}

/// On a terminal rank 0 reads, and its Ctrl-C stops an answer, then the program.
TEST_F(GenerateChatTest, ATerminalIsAskedAndCtrlCStopsAnAnswer) {
  file("chats.jsonl", R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes."}]})"
                      "\n"
                      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes."}]})");
  file("chat.jinja", kTemplate);
  const Result made = train("run", 1,
                            set({"data.text=" + path("chats.jsonl"), "data.format=chat", "train.steps=0",
                                 "data.validation=" + path("chats.jsonl"), "model.kind=llama", "model.context=8",
                                 "data.chat_template=" + path("chat.jinja")}));
  ASSERT_EQ(made.code, 0) << made.err;
  ASSERT_EQ(caravan({"export", path("run")}).code, 0);
  nlohmann::json config = nlohmann::json::parse(text_of(folder() / "run/huggingface/config.json"));
  config["max_position_embeddings"] = 200000;
  file("run/huggingface/config.json", config.dump());
  for (const char* ranks : {"1", "2"}) {
    Child::Options terminal = options();
    terminal.terminal = true;
    terminal.patience_s = 60;
    // Always the letter z, and so without an end.
    Child child({program(), "generate", path("run/huggingface"), "--chat", "--logit-bias", "z=100", "--ranks", ranks},
                terminal);
    child.expect_soon("> ");
    child.type("q1\n");
    child.expect_soon("zzzz");
    child.type("\x03");
    child.expect_soon("> ", 2);
    child.type("/reset\n");
    child.expect_soon("> ", 3);
    child.type("\x03");
    EXPECT_EQ(child.wait(), 130) << child.out();
    EXPECT_LT(child.out().size(), 100000U);
    EXPECT_TRUE(child.all_gone(10));
  }
}

}  // namespace
}  // namespace caravan::generate_chat_test
