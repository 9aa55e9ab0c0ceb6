// Models with an encoder and a decoder, and what encoders answer, over ranks, against the whole model.
#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/formats/huggingface/huggingface.h"
#include "caravan/generate/answers.h"
#include "tests/data/support.h"
#include "tests/formats/small_models.h"
#include "tests/nn/tiny.h"

namespace caravan::testing::encoder_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<LoadOptions> kSplits{{.tp = 1},
                                       {.tp = 2},
                                       {.tp = 1, .pp = 2},
                                       {.tp = 2, .pp = 2},
                                       {.tp = 1, .parameters = Tier::host},
                                       {.tp = 2, .pp = 2, .parameters = Tier::host}};
const ContinuationOptions kGreedy{.num_tokens = 20, .sampling = {.temperature = 0}};

ModelConfig small(const std::string& name, int64_t vocabulary) {
  ModelConfig config =
      small_model(*find_architecture(name),
                  {.layers = 4, .width = 32, .heads = 4, .context = 24, .vocabulary = vocabulary, .hidden = 37});
  config.dropout = 0;
  return config;
}

/// A random model, and the folder that has it.
std::unique_ptr<Model> written(const ModelConfig& config, const Tokenizer& tokenizer, const fs::path& folder,
                               const SpecialTokens& tokens = {}) {
  const at::NoGradGuard no_grad;
  auto model = whole_model(config, 3);
  NamedTensors values;
  for (Parameter* parameter : model->parameters()) {
    if (parameter->sharded().dim() >= 2) parameter->sharded().mul_(8);
    values.emplace_back(parameter->name(), parameter->sharded().detach());
  }
  write_huggingface(folder, config, values, tokenizer, {.tokens = tokens, .files = {}});
  return model;
}

void on_ranks(const LoadOptions& split, const std::function<void(const Mesh&)>& body) {
  SCOPED_TRACE(::testing::Message() << "tp " << split.tp << " pp " << split.pp);
  const int ranks = std::max(split.tp, 1) * std::max(split.pp, 1);
  run_thread_ranks(ranks,
                   [&](const auto& world) {
                     body(Mesh::create(world, {{"dp", ranks}}));
                   },
                   {.timeout = std::chrono::seconds(60)});
}

/// The most likely bytes one by one, each of a pass over the whole row.
std::string without_cache(Model& model, const std::string& source, int64_t count) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> ids;
  for (const char c : source) ids.push_back(static_cast<uint8_t>(c));
  const auto length = static_cast<int64_t>(ids.size());
  ids.push_back(0);
  std::string text;
  while (static_cast<int64_t>(text.size()) < count) {
    const ForwardContext context{.phase = Phase::evaluate, .sources = length};
    const at::Tensor logits = model.run({at::tensor(ids, at::kLong).unsqueeze(0)}, context).front();
    ids.push_back(logits.select(0, 0).select(0, -1).argmax().item<int64_t>());
    text += static_cast<char>(ids.back());
  }
  return text;
}

/// Text is UTF-8, whatever the bytes.
std::string shown(const std::string& bytes) {
  TextStream stream(Tokenizer::bytes());
  std::string text;
  for (const char c : bytes) text += stream.put(static_cast<uint8_t>(c));
  return text + stream.finish();
}

TEST(EncoderDecoder, GeneratesOverRanksAsWithoutACache) {
  const TemporaryFolder folder;
  const auto model = written(small("t5", 256), Tokenizer::bytes(), folder / "t5", {.decoder_start = 0});
  const std::vector<std::string> sources{"a white whale", "the sea", "Ishmael", "the sea"};
  std::vector<Prompt> prompts;
  std::vector<std::string> wanted;
  for (const std::string& source : sources) {
    prompts.push_back({source, kGreedy});
    wanted.push_back(without_cache(*model, source, kGreedy.num_tokens));
  }
  EXPECT_NE(wanted[0], wanted[1]);
  for (const LoadOptions& split : kSplits) {
    on_ranks(split, [&](const Mesh& mesh) {
      const LanguageModel loaded = load(folder / "t5", mesh, split);
      for (const int64_t batch : {1, 3}) {
        Generator generator(loaded.text_model(), loaded.tokenizer(), SpecialTokens{.decoder_start = 0},
                            {.batch = batch});
        const std::vector<Continuation> made = generator.run(prompts);
        for (size_t i = 0; i < made.size(); ++i) {
          EXPECT_EQ(made[i].num_tokens, kGreedy.num_tokens);
          EXPECT_EQ(made[i].text, shown(wanted[i])) << i;
        }
      }
    });
  }
}

TEST(EncoderDecoder, ATargetEndsWithItsContext) {
  const TemporaryFolder folder;
  written(small("t5", 256), Tokenizer::bytes(), folder / "t5", {.decoder_start = 0});
  on_ranks({}, [&](const Mesh& mesh) {
    LanguageModel model = load(folder / "t5", mesh);
    const Continuation made =
        model.generate("the sea", {.num_tokens = 100, .sampling = {.temperature = 0}}, [](auto) { return true; });
    EXPECT_EQ(made.num_tokens, 24);
    EXPECT_EQ(made.ending, Ending::length);
    const std::string long_source(30, 'x');
    EXPECT_THAT(error_of<UsageError>([&] { model.generate(long_source, kGreedy); }), HasSubstr("has 30 tokens"));
    ContinuationOptions truncated = kGreedy;
    truncated.truncate = true;
    EXPECT_EQ(model.generate(long_source, truncated), model.generate(std::string(24, 'x'), truncated));
    EXPECT_THAT(error_of<UsageError>([&] { embed(model, {"a"}); }), HasSubstr("a source and of a target"));
  });
}

/// A model of pairs has learned sources with an end; its tokenizer may not add it.
TEST(EncoderDecoder, APromptEndsAsInTraining) {
  const TemporaryFolder folder;
  written(small("t5", 256), Tokenizer::bytes(), folder / "plain", {.decoder_start = 0});
  written(small("t5", 256), Tokenizer::bytes(), folder / "ended", {.decoder_start = 0, .prompt_end = 7});
  on_ranks({}, [&](const Mesh& mesh) {
    LanguageModel plain = load(folder / "plain", mesh), ended = load(folder / "ended", mesh);
    EXPECT_EQ(ended.text().tokens.prompt_end, 7);
    EXPECT_EQ(ended.generate("the sea", kGreedy), plain.generate("the sea\x07", kGreedy));
    EXPECT_EQ(ended.generate("the sea\x07", kGreedy), plain.generate("the sea\x07", kGreedy)) << "no second one";
    EXPECT_NE(ended.generate("the sea", kGreedy), plain.generate("the sea", kGreedy));
    EXPECT_THAT(error_of<UsageError>([&] { ended.generate(std::string(24, 'x'), kGreedy); }),
                AllOf(HasSubstr("has 25 tokens, but the source context"), HasSubstr("its first 24 tokens")));
  });
}

/// A pair that is too long is cut as training cuts it, token by token.
TEST(Answers, AreOfTheTokensThatTrainingKeeps) {
  const TemporaryFolder folder;
  ModelConfig config = small("bert", 256);
  config.classes = 2;
  written(config, Tokenizer::bytes(), folder / "classes");
  on_ranks({}, [&](const Mesh& mesh) {
    const LanguageModel model = load(folder / "classes", mesh);
    const TextInput whole{.text = std::string(20, 'a'), .pair = std::string(9, 'b'), .where = "texts.jsonl:3"};
    EXPECT_THAT(error_of<UsageError>([&] { classify(model, whole); }),
                AllOf(HasSubstr("texts.jsonl:3"), HasSubstr("its first tokens: --truncate")));
    TextInput cut = whole;
    cut.truncate = true;
    const TextInput kept{.text = std::string(15, 'a'), .pair = std::string(9, 'b')};
    EXPECT_EQ(classify(model, cut).front().probability, classify(model, kept).front().probability);
  });
}

const char* const kWords = R"({"version": "1.0", "added_tokens": [
    {"id": 0, "content": "[PAD]", "special": true, "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false},
    {"id": 1, "content": "[MASK]", "special": true, "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false}],
  "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
  "model": {"type": "WordLevel", "unk_token": "[PAD]",
            "vocab": {"[PAD]": 0, "[MASK]": 1, "a": 2, "white": 3, "whale": 4, "sea": 5, "ship": 6}}})";

TEST(Answers, AreThoseOfTheWholeModel) {
  const TemporaryFolder folder;
  const Tokenizer words = Tokenizer::from_json(kWords);
  const auto masked = written(small("bert", 7), words, folder / "masked");
  ModelConfig config = small("bert", 7);
  config.classes = 3;
  const auto of_classes = written(config, words, folder / "classes", {.classes = {"x", "y", "z"}});
  const at::NoGradGuard no_grad;
  const at::Tensor ids = at::tensor({2, 3, 1, 5}, at::kLong).unsqueeze(0);
  const at::Tensor chances = at::softmax(masked->run({ids}, {.phase = Phase::evaluate}).front()[0][2], 0);
  const at::Tensor states = masked->run_blocks(0, 5, {ids}, {.phase = Phase::evaluate}).front()[0];
  const at::Tensor of_class = at::softmax(of_classes->run({ids}, {.phase = Phase::evaluate}).front()[0][0], 0);
  const TextInput text{.text = "a white [MASK] sea"};
  for (const LoadOptions& split : kSplits) {
    on_ranks(split, [&](const Mesh& mesh) {
      const LanguageModel model = load(folder / "masked", mesh, split);
      const auto masks = fill_mask(model, text, 2);
      ASSERT_EQ(masks.size(), 1);
      ASSERT_EQ(masks[0].size(), 2);
      EXPECT_EQ(masks[0][0].id, chances.argmax().item<int64_t>());
      for (const TokenScore& score : masks[0]) {
        EXPECT_NEAR(score.probability, chances[score.id].item<double>(), 1e-5);
        EXPECT_EQ(score.token, words.decode(std::vector{static_cast<int32_t>(score.id)}));
      }
      for (const auto& [pooling, wanted] :
           {std::pair{Pooling::mean, states.mean(0)}, {Pooling::first, states[0]}, {Pooling::last, states[3]}}) {
        const at::Tensor own = at::tensor(embed(model, text, pooling));
        EXPECT_LT((own - wanted).abs().max().item<double>(), 1e-5 * states.abs().max().item<double>());
      }
      const LanguageModel classifier = load(folder / "classes", mesh, split);
      const std::vector<ClassScore> scores = classify(classifier, text);
      ASSERT_EQ(scores.size(), 3);
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_NEAR(scores[i].probability, of_class[scores[i].name[0] - 'x'].item<double>(), 1e-5);
        EXPECT_LE(scores[i].probability, scores[i == 0 ? 0 : i - 1].probability);
      }
    });
  }
}

TEST(Answers, RefuseWhatAModelCannot) {
  const TemporaryFolder folder;
  const Tokenizer words = Tokenizer::from_json(kWords);
  written(small("bert", 7), words, folder / "masked");
  written(small("llama", 7), words, folder / "llama");
  on_ranks({}, [&](const Mesh& mesh) {
    LanguageModel masked = load(folder / "masked", mesh), llama = load(folder / "llama", mesh);
    const auto refusal = [](const auto& ask) { return error_of<UsageError>(ask); };
    EXPECT_THAT(refusal([&] { fill_mask(masked, {"a whale"}); }), HasSubstr("write [MASK]"));
    EXPECT_THAT(refusal([&] { fill_mask(llama, {"a [MASK]"}); }), HasSubstr("does not predict masked tokens"));
    EXPECT_THAT(refusal([&] { classify(masked, {"a"}); }), HasSubstr("data.task = \"classify\""));
    EXPECT_THAT(refusal([&] { masked.generate("a", kGreedy); }), HasSubstr("does not continue texts"));
    std::string text;
    for (int i = 0; i < 30; ++i) text += "whale ";
    EXPECT_THAT(refusal([&] { embed(masked, {text}); }),
                HasSubstr("has 30 tokens, but the context of the model is 24"));
    EXPECT_EQ(embed(masked, {.text = text, .truncate = true}), embed(masked, {text.substr(0, 24 * 6)}));
    EXPECT_EQ(embed(llama, {"a"}).size(), 32);
  });
}

}  // namespace
}  // namespace caravan::testing::encoder_test
