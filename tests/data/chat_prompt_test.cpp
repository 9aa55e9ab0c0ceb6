// Prompts that templates write for a reply, against those of transformers 5.24 (apply_chat_template with
// add_generation_prompt).
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/data/chat/chat_template.h"
#include "caravan/formats/huggingface/chat_files.h"
#include "tests/data/support.h"

namespace caravan::chat_prompt_test {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kQwen2 =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou "
    "are a helpful assistant.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
constexpr const char* kLlama3 =
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 "
    "%}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";
constexpr const char* kGemma2 =
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif "
    "%}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ "
    "raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if "
    "(message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif "
    "%}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if "
    "add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}";
constexpr const char* kMistral =
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ "
    "raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if "
    "message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == "
    "'assistant' %}{{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are "
    "supported!') }}{% endif %}{% endfor %}";
constexpr const char* kTools =
    "{% if tools %}<tools>\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}</tools>\n{% endif %}{% for m in "
    "messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

const Json kSystem{{"role", "system"}, {"content", "Be brief."}};
const Json kQuestion{{"role", "user"}, {"content", " What is a whale? "}};
const Json kAnswer{{"role", "assistant"}, {"content", "A mammal."}};
const Json kNext{{"role", "user"}, {"content", "Größer als ein Hai?"}};
const Json kChat = Json::array({kQuestion, kAnswer, kNext});

std::string prompt_of(const ChatTemplate& chat, const Json& messages, const Json& tools = nullptr) {
  return chat.prompt(messages, tools, "x");
}

TEST(ChatPrompt, IsThatOfTransformers) {
  const ChatTemplate qwen(kQwen2, "t", "<|endoftext|>", "<|im_end|>");
  EXPECT_EQ(prompt_of(qwen, kChat),
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n What is a whale? "
            "<|im_end|>\n<|im_start|>assistant\nA mammal.<|im_end|>\n<|im_start|>user\nGrößer als ein "
            "Hai?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(prompt_of(qwen, {kSystem, kQuestion}),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n What is a whale? "
            "<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(qwen.turn_end(), "<|im_end|>");
  const ChatTemplate llama(kLlama3, "t", "<|begin_of_text|>", "<|eot_id|>");
  EXPECT_EQ(prompt_of(llama, kChat),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWhat is a "
            "whale?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nA "
            "mammal.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nGrößer als ein "
            "Hai?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(prompt_of(llama, {kSystem, kQuestion}),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe "
            "brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWhat is a "
            "whale?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(llama.turn_end(), "<|eot_id|>");
  const ChatTemplate gemma(kGemma2, "t", "<bos>", "<eos>");
  EXPECT_EQ(prompt_of(gemma, kChat),
            "<bos><start_of_turn>user\nWhat is a whale?<end_of_turn>\n<start_of_turn>model\nA "
            "mammal.<end_of_turn>\n<start_of_turn>user\nGrößer als ein Hai?<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_EQ(gemma.turn_end(), "<end_of_turn>");
  const ChatTemplate mistral(kMistral, "t", "<s>", "</s>");
  EXPECT_EQ(prompt_of(mistral, kChat),
            "<s>[INST]  What is a whale?  [/INST]A mammal.</s>[INST] Größer als ein Hai? [/INST]");
  EXPECT_EQ(mistral.turn_end(), "</s>");
}

/// Members stand in the order of the file, not of the alphabet.
TEST(ChatPrompt, ToolsAreWrittenAsTransformersDoes) {
  const ChatTemplate chat(kTools, "t", "", "");
  const Json tools = Json::parse(
      R"([{"type": "function", "function": {"name": "weather", "description": "The weather of a city",
      "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}])");
  EXPECT_EQ(
      prompt_of(chat, kChat, tools),
      "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": \"The weather of a "
      "city\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}}, "
      "\"required\": [\"city\"]}}}\n</tools>\nuser:  What is a whale? \nassistant: A mammal.\nuser: Größer als ein "
      "Hai?\nassistant:");
  EXPECT_EQ(chat.turn_end(), "");
}

TEST(ChatPrompt, IsRefusedWithItsPlace) {
  const ChatTemplate gemma(kGemma2, "gemma.jinja", "<bos>", "<eos>");
  const auto refusal = [&](const Json& messages) {
    return message_of<DataError>([&] { gemma.prompt(messages, nullptr, "chats.jsonl:7"); });
  };
  EXPECT_THAT(refusal({kSystem, kQuestion}),
              AllOf(HasSubstr("chats.jsonl:7"), HasSubstr("gemma.jinja"), HasSubstr("System role not supported")));
  EXPECT_THAT(refusal(Json::array()), HasSubstr("not a list, or an empty one"));
  EXPECT_THAT(refusal(Json::array({{{"content", "a"}}})), HasSubstr("message 0 has no role"));
  EXPECT_THAT(refusal(Json::array({{{"role", "user"}, {"content", "\xff"}}})), HasSubstr("message 0 is not UTF-8"));
  const ChatTemplate late("{{ 1 % (messages | length - 3) }}{% for m in messages %}{{ m.content }}{% endfor %}",
                          "late.jinja", "", "");
  EXPECT_THAT(message_of<UsageError>([&] { prompt_of(late, kChat); }), HasSubstr("divides by zero"));
}

TEST(ChatPrompt, ATemplateIsFoundAmongTheFilesOfAFolder) {
  const std::string config =
      R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "c{{ bos_token }}"})";
  using Files = std::map<std::string, std::string>;
  const auto written = [](const Files& files, const std::filesystem::path& own = {}) {
    EXPECT_EQ(has_chat_template(files), chat_template_of(files, "folder") != nullptr);
    return chat_template_of(files, "folder", own)->prompt(Json::array({kQuestion}), nullptr, "x");
  };
  EXPECT_EQ(written({{"tokenizer_config.json", config}}), "c<s>");
  EXPECT_EQ(written({{"tokenizer_config.json", config}, {"chat_template.jinja", "j{{ eos_token }}"}}), "j</s>");
  const TemporaryFolder folder;
  std::ofstream(folder / "own.jinja") << "own";
  EXPECT_EQ(written({{"tokenizer_config.json", config}}, folder / "own.jinja"), "own");
  const std::string named =
      R"({"chat_template": [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]})";
  EXPECT_EQ(written({{"tokenizer_config.json", named}}), "d");
  for (const Files& none : {Files{}, Files{{"tokenizer_config.json", "{}"}}, Files{{"chat_template.jinja", ""}}}) {
    EXPECT_FALSE(has_chat_template(none));
    EXPECT_EQ(chat_template_of(none, "folder"), nullptr);
  }
}

}  // namespace
}  // namespace caravan::chat_prompt_test
