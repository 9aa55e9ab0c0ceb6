// LanguageModel::chat: the prompt that a template writes, and what ends an answer.
#include "caravan/generate/chat.h"

#include <gmock/gmock.h>
#include <mutex>

#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/formats/huggingface/chat_files.h"
#include "caravan/formats/huggingface/huggingface.h"
#include "tests/data/support.h"
#include "tests/formats/small_models.h"
#include "tests/nn/tiny.h"

namespace caravan::testing::generate_chat_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kTemplate =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}|END|{% endfor %}{% if add_generation_prompt "
    "%}<assistant>{% endif %}";

void write_model(const std::filesystem::path& folder, const std::map<std::string, std::string>& files) {
  const ModelConfig config =
      testing::small_model(*find_architecture("llama"),
                           {.layers = 2, .width = 32, .heads = 2, .context = 128, .vocabulary = 257, .hidden = 64});
  const auto model = whole_model(config, 3);
  const at::NoGradGuard no_grad;
  NamedTensors values;
  for (Parameter* parameter : model->parameters()) {
    if (parameter->sharded().dim() >= 2) parameter->sharded().mul_(8);  // else every token is followed by itself
    values.emplace_back(parameter->name(), parameter->sharded().detach());
  }
  TextSettings text;
  text.files = files;
  write_huggingface(folder, config, values, Tokenizer::bytes(), text);
}

TEST(Chat, ContinuesWhatTheTemplateWrites) {
  const TemporaryFolder folder;
  write_model(folder / "model", {{"chat_template.jinja", kTemplate}});
  const ContinuationOptions greedy{.num_tokens = 20, .sampling = {.temperature = 0}};
  std::mutex mutex;
  std::vector<std::string> answers, texts;
  for (const int ranks : {1, 2}) {
    run_thread_ranks(ranks,
                     [&](const auto& world) {
                       LanguageModel model = load(folder / "model", Mesh::create(world, {{"dp", ranks}}));
                       const std::string answer = model.chat({{"system", "Be brief."}, {"user", "Hi"}}, greedy);
                       const std::string text =
                           model.generate("<system>Be brief.|END|<user>Hi|END|<assistant>", greedy);
                       const std::lock_guard lock(mutex);
                       answers.push_back(answer);
                       texts.push_back(text);
                     },
                     {.timeout = std::chrono::seconds(60)});
  }
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i], texts[0]);
    EXPECT_EQ(texts[i], texts[0]);
  }
  EXPECT_FALSE(answers[0].empty());
}

TEST(Chat, NeedsATemplate) {
  const TemporaryFolder folder;
  write_model(folder / "model", {});
  run_thread_ranks(1, [&](const auto& world) {
    LanguageModel model = load(folder / "model", Mesh::create(world, {{"dp", 1}}));
    EXPECT_THAT(message_of<DataError>([&] { model.chat({{"user", "Hi"}}); }), HasSubstr("has no chat template"));
    EXPECT_EQ(model.chat_template(), nullptr);
  });
}

TEST(Chat, AnAnswerEndsWhereTheTemplateEndsATurn) {
  const Tokenizer llama = Tokenizer::load(fixture("families/llama2.json"));
  const Prompt special = answer_prompt("text", "</s>", llama, {});
  EXPECT_THAT(special.options.end_tokens, ElementsAre(llama.id_of("</s>").value()));
  EXPECT_THAT(special.options.stop_strings, IsEmpty());
  const Prompt plain = answer_prompt("text", "|END|", llama, {.stop_strings = {"a"}});
  EXPECT_THAT(plain.options.end_tokens, IsEmpty());
  EXPECT_THAT(plain.options.stop_strings, ElementsAre("a", "|END|"));
  const Prompt both = answer_prompt("text", "|END|</s>", llama, {});
  EXPECT_THAT(both.options.end_tokens, IsEmpty());
  EXPECT_THAT(both.options.stop_strings, ElementsAre("|END|")) << "the special token is not shown";
  const Prompt none = answer_prompt("text", "", llama, {});
  EXPECT_THAT(none.options.end_tokens, IsEmpty());
  EXPECT_THAT(none.options.stop_strings, IsEmpty());
}

/// Other programs read where an answer ends in generation_config.json.
TEST(Chat, AnExportEndsWhereTheTemplateEndsATurn) {
  const Tokenizer llama = Tokenizer::load(fixture("families/llama2.json"));
  const int64_t begin = llama.id_of("<s>").value(), end = llama.id_of("</s>").value();
  const auto config = [&](std::map<std::string, std::string> files, std::string_view turn_end) {
    if (!turn_end.empty()) {
      files["chat_template.jinja"] =
          "{% for m in messages %}[{{ m.role }}]{{ m.content }}" + std::string(turn_end) + "{% endfor %}";
    }
    TextSettings text;
    text.files = std::move(files);
    text.tokens.begin = begin;
    text.tokens.end = {7};
    const auto found = with_ends_of_turns(text, llama, "model").files;
    return found.contains("generation_config.json") ? nlohmann::json::parse(found.at("generation_config.json"))
                                                    : nlohmann::json();
  };
  using Json = nlohmann::json;
  EXPECT_EQ(config({}, "</s>"), (Json{{"bos_token_id", begin}, {"eos_token_id", {7, end}}}));
  EXPECT_EQ(config({{"generation_config.json", R"({"eos_token_id": 9, "top_k": 3})"}}, "</s>"),
            (Json{{"eos_token_id", {9, end}}, {"top_k", 3}}));
  const Json has_it{{"eos_token_id", {9, end}}};
  EXPECT_EQ(config({{"generation_config.json", has_it.dump()}}, "</s>"), has_it);
  EXPECT_EQ(config({}, ""), Json()) << "no template";
  EXPECT_EQ(config({}, ";"), Json()) << "a turn ends with a text";
}

/// The tokenizer of Llama 2 begins a text with <s>, and so does its template.
TEST(Chat, ATemplateThatWritesABeginTokenGetsNoSecondOne) {
  const Tokenizer llama = Tokenizer::load(fixture("families/llama2.json"));
  ModelConfig config;
  config.context = 1;
  const auto refusal = [&](bool is_whole) {
    return message_of<UsageError>(
        [&] { check_prompt({.text = "<s> the", .options = {}, .is_whole = is_whole}, llama, {}, config); });
  };
  const auto count = std::ssize(llama.encode("<s> the"));
  ASSERT_GT(count, 1);
  EXPECT_THAT(refusal(true), HasSubstr("has " + std::to_string(count) + " tokens"));
  EXPECT_THAT(refusal(false), HasSubstr("has " + std::to_string(count + 1) + " tokens"));
}

TEST(Chat, AnEndTokenOfThePromptEndsItAlone) {
  const auto model = whole_model(
      testing::small_model(*find_architecture("llama"),
                           {.layers = 2, .width = 32, .heads = 2, .context = 64, .vocabulary = 257, .hidden = 64}),
      3);
  {
    const at::NoGradGuard no_grad;
    for (Parameter* parameter : model->parameters()) {
      if (parameter->sharded().dim() >= 2) parameter->sharded().mul_(8);
    }
  }
  const ContinuationOptions greedy{.num_tokens = 12, .sampling = {.temperature = 0}};
  Generator generator(*model, Tokenizer::bytes());
  std::vector<int64_t> tokens(257);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int64_t>(i);
  ContinuationOptions ending = greedy;
  ending.end_tokens = tokens;
  const std::vector<Prompt> both{{"Call me", ending}, {"Call me", greedy}};
  const auto made = generator.run(both);
  EXPECT_EQ(made[0].num_tokens, 0);
  EXPECT_EQ(made[0].ending, Ending::end_token);
  EXPECT_EQ(made[1].num_tokens, 12);
  ending.beams = 2;
  const Prompt searched{"Call me", ending};
  EXPECT_EQ(generator.run({&searched, 1}).front().num_tokens, 0);
}

}  // namespace
}  // namespace caravan::testing::generate_chat_test
