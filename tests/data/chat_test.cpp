#include <algorithm>
#include <array>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/data/chat/chat_template.h"
#include "caravan/data/chat/chat_tokens.h"
#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/data/windows/sampler.h"
#include "caravan/data/windows/train_windows.h"
#include "caravan/nn/loss/ignored_label.h"
#include "tests/data/support.h"

namespace caravan::chat_test {
namespace {

using json = nlohmann::ordered_json;
using ::testing::HasSubstr;

constexpr const char* kChatMl =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

json message(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

std::vector<std::string> answers_of(const RenderedChat& chat) {
  std::vector<std::string> texts;
  for (const auto& [begin, end] : chat.answers) texts.push_back(chat.text.substr(begin, end - begin));
  return texts;
}

TEST(ChatTemplate, FindsTheAssistantsText) {
  const ChatTemplate chat_ml(kChatMl, "chat_template.jinja", "", "<|im_end|>");
  const json messages{message("system", "Be brief."), message("user", "Hi"), message("assistant", "Héllo"),
                      message("user", "And?"), message("assistant", "")};
  const RenderedChat chat = chat_ml.render(messages, nullptr, "chats.jsonl:1");
  EXPECT_EQ(chat.text,
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHéllo"
            "<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n");
  EXPECT_EQ(answers_of(chat), (std::vector<std::string>{"Héllo<|im_end|>\n", "<|im_end|>\n"}));
  EXPECT_EQ(chat.num_empty, 1);
  const RenderedChat back = RenderedChat::from_json(chat.to_json());
  EXPECT_EQ(back.text, chat.text);
  EXPECT_EQ(back.answers, chat.answers);
}

/// Of a message that calls tools, or has thoughts, the template writes more than its end.
TEST(ChatTemplate, AnswersWithoutContentAreCounted) {
  const ChatTemplate chat_ml(kChatMl, "t", "", "");
  const auto num_empty = [&](const json& messages) { return chat_ml.render(messages, nullptr, "x:1").num_empty; };
  const json ask = message("user", "a");
  EXPECT_EQ(num_empty({ask, message("assistant", " \n"), message("user", ""), message("assistant", "b")}), 1);
  EXPECT_EQ(num_empty({ask, {{"role", "assistant"}, {"content", ""}, {"tool_calls", json::array()}}}), 1);
  EXPECT_EQ(num_empty({ask, {{"role", "assistant"}, {"content", ""}, {"tool_calls", {{{"name", "f"}}}}}}), 0);
  EXPECT_EQ(num_empty({ask, {{"role", "assistant"}, {"content", ""}, {"reasoning_content", "hm"}}}), 0);
}

/// A resumed run knows its text by a hash of this.
TEST(ChatTemplate, ARenderedChatIsKeptInOneForm) {
  EXPECT_EQ((RenderedChat{"Hi you", {{3, 6}}}.to_json()), R"({"answers":[[3,6]],"text":"Hi you"})");
}

/// JSON cannot hold half a character, and a replacement would shift the answers after it.
TEST(ChatTemplate, RefusesATextWithHalfACharacter) {
  const ChatTemplate first_byte("{% for m in messages %}{{ m.content[:1] }}|{% endfor %}", "t", "", "");
  const json messages{message("user", "é"), message("assistant", "b")};
  const std::string text = refusal([&] { first_byte.render(messages, nullptr, "x:1"); });
  EXPECT_THAT(text, HasSubstr("x:1: is not UTF-8 from byte 0 on"));
  EXPECT_EQ(first_byte.render({message("user", "e"), message("assistant", "b")}, nullptr, "x:2").text, "e|b|");
}

TEST(ChatTemplate, WithoutAPromptForAReplyTheHeaderIsPartOfIt) {
  const ChatTemplate plain("{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "t",
                           "<s>", "");
  const RenderedChat chat = plain.render({message("user", "a"), message("assistant", "b")}, nullptr, "x:1");
  EXPECT_EQ(chat.text, "<s>user: a\nassistant: b\n");
  EXPECT_EQ(answers_of(chat), std::vector<std::string>{"assistant: b\n"});
}

TEST(ChatTemplate, AnUnrenderableChatIsRefused) {
  EXPECT_THAT(refusal([] { ChatTemplate("{% if %}", "bad.jinja", "", ""); }),
              AllOf(HasSubstr("bad.jinja"), HasSubstr("cannot be rendered")));
  const ChatTemplate strict(
      "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}"
      "{% endif %}{{ m.content }}{% endfor %}",
      "strict.jinja", "", "");
  const auto refused = [&](const ChatTemplate& by, const json& messages) {
    return refusal([&] { by.render(messages, nullptr, "chats.jsonl:7"); });
  };
  const json answer = message("assistant", "b");
  EXPECT_THAT(refused(strict, {message("system", "a"), answer}),
              AllOf(HasSubstr("chats.jsonl:7"), HasSubstr("no system role"), HasSubstr("strict.jinja")));
  // Only the last answer keeps its thoughts.
  const ChatTemplate forgets("{% for m in messages %}{{ m.content if loop.last else 'x' }}{% endfor %}", "t", "", "");
  EXPECT_THAT(refused(forgets, {answer, message("user", "c"), answer}), HasSubstr("message 0 changes"));
  EXPECT_THAT(refused(strict, json::array({message("user", "a")})), HasSubstr("no message of the assistant"));
  EXPECT_THAT(refused(strict, json::array()), HasSubstr("not a list, or an empty one"));
  EXPECT_THAT(refused(strict, "hello"), HasSubstr("not a list"));
  EXPECT_THAT(refused(strict, {{{"content", "a"}}}), HasSubstr("message 0 has no role"));
  EXPECT_THAT(refused(strict, {{{"role", "assistant"}, {"content", 3}}}), HasSubstr("no content that is a string"));
}

/// The thoughts of an answer are written while it is the last: those before are input.
TEST(ChatTemplate, OneThatRewritesEarlierAnswersLearnsTheLast) {
  const ChatTemplate thinks(
      "{% for m in messages %}{% if m.role == 'assistant' %}a:{% if loop.last %}[{{ m.thought }}]{% endif %}"
      "{{ m.content }};{% else %}u:{{ m.content }};{% endif %}{% endfor %}{% if add_generation_prompt %}a:{% endif %}",
      "t", "", "");
  const auto answer = [](const std::string& thought, const std::string& content) {
    return json{{"role", "assistant"}, {"content", content}, {"thought", thought}};
  };
  const json two{message("user", "1"), answer("x", "one"), message("user", "2"), answer("y", "two")};
  const RenderedChat chat = thinks.render(two, nullptr, "x:1");
  EXPECT_EQ(chat.text, "u:1;a:one;u:2;a:[y]two;");
  EXPECT_EQ(answers_of(chat), std::vector<std::string>{"[y]two;"});
  EXPECT_TRUE(chat.has_last_alone);
  EXPECT_TRUE(RenderedChat::from_json(chat.to_json()).has_last_alone);
  const RenderedChat one = thinks.render({two[0], two[1]}, nullptr, "x:2");
  EXPECT_EQ(answers_of(one), std::vector<std::string>{"[x]one;"});
  EXPECT_FALSE(one.has_last_alone);
  // The last message is not the answer, which it changes.
  EXPECT_THAT(refusal([&] {
                thinks.render({two[0], two[1], two[2]}, nullptr, "x:3");
              }),
              HasSubstr("message 1 changes"));
}

TEST(ChatTemplate, MessagesOfShareGptAreRefusedWithTheirConversion) {
  const ChatTemplate chat_ml(kChatMl, "t", "", "");
  const json talk = json::array({{{"from", "human"}, {"value", "a"}}, {{"from", "gpt"}, {"value", "b"}}});
  EXPECT_THAT(refusal([&] { chat_ml.render(talk, nullptr, "x:1"); }), AllOf(HasSubstr("ShareGPT"), HasSubstr("jq -c")));
}

/// Each of them killed or stopped the process that rendered it.
TEST(ChatTemplate, HostileOnesAreRefusedWithTheirBudget) {
  const auto repeated = [](const std::string& part, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += part;
    return all;
  };
  const auto expression = [](const std::string& text) { return "{{ " + text + " }}"; };
  const std::string stack = "of stack";
  const std::string memory = "of memory";
  const std::string time = "of processor time";
  const std::vector<std::array<std::string, 3>> hostile{
      {"modulo", "{{ 1 % 0 }}", "divides by zero"},
      {"recursive macro", "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", stack},
      {"namespace in itself", "{% set n = namespace(a=1) %}{% set n.a = n %}{{ n }}", stack},
      {"list in itself", "{% set l = [] %}{{ l.append(l) }}{{ l }}", stack},
      {"comment", "{" + repeated("#", 1'000'000), stack},
      {"not", expression(repeated("not ", 200'000) + "1"), stack},
      {"members", expression("messages" + repeated(".a", 100'000)), time},
      {"brackets", expression(repeated("(", 100'000) + "1" + repeated(")", 100'000)), time},
      {"repetition", "{{ 'a' * 1000000000 }}", time},
      {"range", "{% for i in range(1000000000) %}{% endfor %}", memory},
      {"size", repeated("a", (1 << 20) + 1), "1048577 bytes"},
      {"output", "{% set a = 'a' * 1000000 %}{% for i in range(100) %}{{ a }}{% endfor %}", "of output"},
      {"loops", "{% for i in range(30000) %}{% for j in range(30000) %}{% endfor %}{% endfor %}", time},
  };
  for (const auto& [name, source, budget] : hostile) {
    const std::string file = name + ".jinja";
    EXPECT_THAT(message_of<UsageError>([&, text = source] { ChatTemplate(text, file, "", ""); }),
                AllOf(HasSubstr(file), HasSubstr("is a chat template that"), HasSubstr(budget)))
        << name;
  }
}

/// A template that passes the trial with two messages is stopped when it exceeds its budget, and the next chat is
/// rendered.
TEST(ChatTemplate, BudgetsHoldForEveryChat) {
  const ChatTemplate late("{{ 1 % (messages | length - 3) }}{% for m in messages %}{{ m.content }}{% endfor %}",
                          "late.jinja", "", "");
  const json answer = message("assistant", "b");
  EXPECT_THAT(message_of<UsageError>([&] {
                late.render({answer, answer, answer}, nullptr, "chats.jsonl:7");
              }),
              AllOf(HasSubstr("late.jinja"), HasSubstr("chats.jsonl:7"), HasSubstr("divides by zero")));
  EXPECT_EQ(late.render(json::array({answer}), nullptr, "chats.jsonl:8").text, "1b");
}

class Chats : public ::testing::Test {
 protected:
  /// Uses the bytes tokenizer: an id is a byte.
  ChatTokens tokens(const std::vector<json>& chats) {
    const ChatTemplate plain(
        "{% for m in messages %}{% if m.role != 'assistant' %}u{{ m.content }}"
        "{% else %}a{{ m.content }}.{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}a{% endif %}",
        "t", "", "");
    std::vector<std::string> documents;
    for (const json& chat : chats) documents.push_back(plain.render(chat, nullptr, "x").to_json());
    const std::vector<std::string_view> views(documents.begin(), documents.end());
    return open_or_build_chats(folder_ / "cache", views, Tokenizer::bytes());
  }
  TemporaryFolder folder_;
};

std::string text_of(const std::vector<int64_t>& ids) { return {ids.begin(), ids.end()}; }

TEST_F(Chats, HaveTargetsOnlyInAnswers) {
  const std::vector<json> chats{
      {message("user", "hi"), message("assistant", "yo")},
      {message("user", "é"), message("assistant", "b"), message("user", "c"), message("assistant", "d")}};
  for (int again = 0; again < 2; ++again) {  // built, then found
    const ChatTokens made = tokens(chats);
    const std::string text =
        "uhiayo.u\xc3\xa9"
        "ab.ucad.";
    ASSERT_EQ(made.tokens.size(), static_cast<int64_t>(text.size()));
    EXPECT_EQ(made.tokens.info().text_bytes, 3 + 2 + 2);
    const std::string want_marks =
        "000"
        "0113"
        "000"
        "0"
        "11"
        "00"
        "0"
        "13";
    std::vector<int64_t> ids(text.size()), marks(text.size());
    made.tokens.read(0, ids);
    made.marks.read(0, marks);
    EXPECT_EQ(text_of(ids), text);
    std::string found;
    for (const int64_t mark : marks) found += static_cast<char>('0' + mark);
    EXPECT_EQ(found, want_marks);
  }
}

/// With a normalizer, the ids are those of the whole text, and marks follow the normalized text.
TEST_F(Chats, OfATokenizerWithNfcHaveTheSameTargets) {
  json file = json::parse(Tokenizer::bytes().to_json());
  file["normalizer"] = {{"type", "NFC"}};
  const Tokenizer nfc = Tokenizer::from_json(file.dump(), "nfc.json");
  const std::string decomposed = "e\xcc\x81";  // becomes é, two bytes
  const std::string composed = "\xc3\xa9";
  const ChatTemplate plain("{% for m in messages %}{{ m.content }}{% endfor %}", "t", "", "");
  const auto made = [&](const json& messages) {
    const std::string document = plain.render(messages, nullptr, "x").to_json();
    const std::string_view view = document;
    const ChatTokens chat = open_or_build_chats(folder_ / "cache", std::span(&view, 1), nfc);
    std::vector<int64_t> ids(static_cast<size_t>(chat.tokens.size())), marks(ids);
    chat.tokens.read(0, ids);
    chat.marks.read(0, marks);
    std::string text(ids.begin(), ids.end()), of_answers;
    for (size_t i = 0; i < ids.size(); ++i) of_answers += (marks[i] & kIsAnswer) != 0 ? text[i] : '_';
    EXPECT_EQ(chat.tokens.info().text_bytes,
              static_cast<int64_t>(of_answers.size() - std::ranges::count(of_answers, '_')));
    return std::pair(text, of_answers);
  };
  EXPECT_EQ(made({message("user", "a" + decomposed), message("assistant", "b" + decomposed + "c"),
                  message("user", decomposed), message("assistant", "d")}),
            std::pair("a" + composed + "b" + composed + "c" + composed + "d", "___b" + composed + "c__d"));
  // The accent composes with the last letter of the question, which does not belong to the assistant.
  EXPECT_EQ(made({message("user", "e"), message("assistant", "\xcc\x81x")}),
            std::pair(composed + "x", std::string("__x")));
  // Two marks that change their order: the character ends where the answer's second mark ends.
  EXPECT_EQ(made({message("user", "q\xcc\x87"), message("assistant", "\xcc\xa3x")}),
            std::pair(std::string("q\xcc\xa3\xcc\x87x"), std::string("_____x")));
}

/// Such a tokenizer puts a space before a text, or before each part of it.
TEST_F(Chats, OfATokenizerOfSentencePieceHaveTheirTargetsInAnswers) {
  const ChatTemplate instructions(
      "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
      "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}",
      "t", "", "");
  const json messages{message("user", "the whale"), message("assistant", "a white\nwhale \u20ac"),
                      message("user", "again"), message("assistant", "yes")};
  const std::string document = instructions.render(messages, nullptr, "x").to_json();
  for (const char* name : {"llama2", "mistral", "gemma"}) {
    const Tokenizer tokenizer = Tokenizer::load(fixture(std::string("families/") + name + ".json"));
    const std::string_view view = document;
    const ChatTokens chat = open_or_build_chats(folder_ / "cache", std::span(&view, 1), tokenizer);
    std::vector<int64_t> ids(static_cast<size_t>(chat.tokens.size())), marks(ids);
    chat.tokens.read(0, ids);
    chat.marks.read(0, marks);
    std::string of_answers;
    for (size_t i = 0; i < ids.size(); ++i) {
      if ((marks[i] & kIsAnswer) != 0) of_answers += tokenizer.token_bytes(static_cast<int32_t>(ids[i]));
    }
    EXPECT_EQ(of_answers, "a white\nwhale \u20ac</s>yes</s>") << name;
  }
}

TEST_F(Chats, AnswerCountsAreSumsOfMarks) {
  std::vector<json> chats;
  for (int i = 0; i < 60; ++i) {
    chats.push_back({message("user", std::string(static_cast<size_t>(1 + i * 7 % 40), 'q')),
                     message("assistant", std::string(static_cast<size_t>(i * 11 % 90), 'r'))});
  }
  const ChatTokens made = tokens(chats);
  const auto size = made.tokens.size();
  ASSERT_GT(size, 8 * AnswerCounts::kBlock);
  std::vector<int64_t> marks(static_cast<size_t>(size));
  made.marks.read(0, marks);
  for (const bool packed : {false, true}) {
    const AnswerCounts counts(made.marks, packed);
    for (int64_t first = 0; first < size; first += 37) {
      for (const int64_t count : {int64_t{1}, int64_t{20}, 3 * AnswerCounts::kBlock, size - 1 - first}) {
        if (count < 1 || first + count >= size) continue;
        int64_t want = 0;
        for (auto t = static_cast<size_t>(first); t < static_cast<size_t>(first + count); ++t) {
          want += (marks[t + 1] & kIsAnswer) != 0 && !(packed && (marks[t] & kEndsChat) != 0) ? 1 : 0;
        }
        ASSERT_EQ(counts.num_targets(first, count), want) << first << " " << count << " " << packed;
      }
    }
  }
}

/// Against the marks, read one by one.
TEST_F(Chats, WindowsCountAndMarkTheSameTargets) {
  std::vector<json> chats;
  for (int i = 0; i < 20; ++i) {
    chats.push_back({message("user", std::string(static_cast<size_t>(i % 5 + 1), 'q')),
                     message("assistant", std::string(static_cast<size_t>(i % 3), 'r'))});
  }
  const ChatTokens made = tokens(chats);
  const auto size = static_cast<size_t>(made.tokens.size());
  std::vector<int64_t> marks(size);
  made.marks.read(0, marks);
  const Documents documents(
      made.marks, [](int64_t mark) { return (mark & kEndsChat) != 0; }, true);
  for (const Documents* packed : {static_cast<const Documents*>(nullptr), &documents}) {
    const TrainWindows windows({{.tokens = &made.tokens, .documents = packed, .marks = &made.marks}}, 8, 3);
    std::vector<int64_t> inputs(8), labels(8), of(8), positions(8);
    int64_t counted = 0;
    for (int64_t sample = 0; sample < 40; ++sample) {
      windows.fill(sample, inputs, labels, of, positions);
      counted += 8 - std::ranges::count(labels, kIgnoredLabel);
    }
    EXPECT_EQ(windows.num_targets(0, 40), counted);
    EXPECT_GT(counted, 0);

    const ValidationWindows evaluation(made.tokens, 8, packed, std::nullopt, &made.marks);
    int64_t want = 0;
    for (size_t t = 1; t < size; ++t) want += (marks[t] & kIsAnswer) != 0 ? 1 : 0;
    EXPECT_EQ(evaluation.num_targets(), want) << "no chat begins with an answer";
  }
}

}  // namespace
}  // namespace caravan::chat_test
