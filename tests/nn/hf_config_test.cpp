#include "caravan/nn/hf_config.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/nn/hf_generation.h"
#include "tests/ranks/rank_case.h"

namespace caravan {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

constexpr ModelConfig kGpt2{.layers = 3,
                            .width = 20,
                            .heads = 5,
                            .kv_heads = 5,
                            .context = 31,
                            .vocabulary = 101,
                            .hidden = 77,
                            .tie_embeddings = false,
                            .dropout = 0.25,
                            .norm_epsilon = 1e-6};
constexpr ModelConfig kLlama{.kind = ModelKind::llama,
                             .layers = 2,
                             .width = 24,
                             .heads = 6,
                             .kv_heads = 2,
                             .context = 64,
                             .vocabulary = 99,
                             .hidden = 50,
                             .dropout = 0.125,
                             .rope_theta = 5e5};

TEST(HuggingfaceConfig, thereAndBackIsTheSame) {
  ModelConfig gpt2 = kGpt2;
  gpt2.kv_heads = 0;
  EXPECT_EQ(parse_huggingface_config(huggingface_config(gpt2), "config.json"), gpt2);
  EXPECT_EQ(parse_huggingface_config(huggingface_config(kLlama), "config.json"), kLlama);
}

TEST(HuggingfaceConfig, ownRulesAreWrittenOut) {
  const ModelConfig config{.kind = ModelKind::llama, .width = 24, .heads = 6, .vocabulary = 9};
  const json written = json::parse(huggingface_config(config, {.begin = 7, .end = {8}}, "bfloat16"));
  EXPECT_EQ(written["num_key_value_heads"], 6);
  EXPECT_EQ(written["intermediate_size"], 64);
  EXPECT_EQ(written["bos_token_id"], 7);
  EXPECT_EQ(written["eos_token_id"], 8);
  EXPECT_EQ(written["dtype"], "bfloat16");
  const ModelConfig read = parse_huggingface_config(written.dump(), "config.json");
  EXPECT_EQ(read.num_kv_heads(), config.num_kv_heads());
  EXPECT_EQ(read.hidden_width(), config.hidden_width());
}

TEST(HuggingfaceConfig, missingKeysHaveTheDefaultsOfTransformers) {
  const ModelConfig gpt2 = parse_huggingface_config(
      R"({"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 16, "n_inner": null,
          "vocab_size": 5})",
      "config.json");
  EXPECT_EQ(gpt2.hidden_width(), 32);
  EXPECT_EQ(gpt2.dropout, 0.1);
  EXPECT_TRUE(gpt2.tie_embeddings);
  const ModelConfig llama = parse_huggingface_config(
      R"({"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2,
          "intermediate_size": 12, "max_position_embeddings": 16, "vocab_size": 5})",
      "config.json");
  EXPECT_EQ(llama.num_kv_heads(), 2);
  EXPECT_EQ(llama.norm_epsilon, 1e-6);
  EXPECT_EQ(llama.rope_theta, 10000);
  EXPECT_FALSE(llama.tie_embeddings);
}

TEST(HuggingfaceConfig, rotaryBaseIsFoundWhereEitherVersionPutsIt) {
  json old = json::parse(huggingface_config(kLlama));
  old.erase("rope_parameters");
  old["rope_scaling"] = nullptr;
  EXPECT_EQ(parse_huggingface_config(old.dump(), "config.json").rope_theta, 5e5);
  json recent = json::parse(huggingface_config(kLlama));
  recent.erase("rope_theta");
  EXPECT_EQ(parse_huggingface_config(recent.dump(), "config.json").rope_theta, 5e5);
}

TEST(HuggingfaceConfig, specialTokensComeBack) {
  for (const SpecialTokens& tokens : {SpecialTokens{}, SpecialTokens{.begin = 3, .end = {4}, .pad = 0},
                                      SpecialTokens{.end = {8, 9, 7}}, SpecialTokens{.begin = 0, .pad = -1}}) {
    for (const ModelConfig& config : {kGpt2, kLlama}) {
      EXPECT_EQ(parse_special_tokens(huggingface_config(config, tokens), "config.json"), tokens);
    }
  }
  // transformers' LlamaConfig and GPT2Config have these defaults; null is no token.
  json object = json::parse(huggingface_config(kLlama));
  EXPECT_EQ(parse_special_tokens(object.dump(), "config.json"), SpecialTokens{});
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) object.erase(key);
  EXPECT_EQ(parse_special_tokens(object.dump(), "config.json"), (SpecialTokens{.begin = 1, .end = {2}}));
  object = json::parse(huggingface_config(kGpt2));
  object.erase("eos_token_id");
  EXPECT_EQ(parse_special_tokens(object.dump(), "config.json"), SpecialTokens{}) << "50256 of a vocabulary of 101";
  object["vocab_size"] = 50257;
  EXPECT_EQ(parse_special_tokens(object.dump(), "config.json"), (SpecialTokens{.end = {50256}}));
  for (const json& value :
       {json("</s>"), json(1.5), json({{"id", 1}}), json({1, "2"}), json(-5), json(uint64_t{1} << 63)}) {
    object["eos_token_id"] = value;
    EXPECT_THAT(error_of<DataError>([&] { parse_special_tokens(object.dump(), "some/config.json"); }),
                AllOf(HasSubstr("eos_token_id"), HasSubstr("not a token id"), HasSubstr("some/config.json")))
        << value;
  }
}

TEST(GenerationConfig, readsWhatGenerateUsesAndNamesTheRest) {
  const GenerationConfig full = parse_generation_config(
      R"({"bos_token_id": 1, "eos_token_id": [2, 5], "pad_token_id": 0, "do_sample": true, "temperature": 0.6,
          "top_k": 7, "top_p": 0.9, "repetition_penalty": 1.1, "num_beams": 4, "min_p": 0.0, "typical_p": 1.0,
          "no_repeat_ngram_size": 0, "stop_strings": ["x"], "max_new_tokens": 9, "transformers_version": "5"})",
      "generation_config.json");
  EXPECT_EQ(full.begin, 1);
  EXPECT_EQ(full.end, (std::vector<int64_t>{2, 5}));
  EXPECT_EQ(full.do_sample, true);
  EXPECT_EQ(full.temperature, 0.6);
  EXPECT_EQ(full.top_k, 7);
  EXPECT_EQ(full.top_p, 0.9);
  EXPECT_EQ(full.ignored, (std::vector<std::string>{"repetition_penalty = 1.1", "num_beams = 4", "stop_strings"}));

  const GenerationConfig none = parse_generation_config(R"({"eos_token_id": null, "top_k": null})", "g.json");
  EXPECT_FALSE(none.end || none.begin || none.do_sample || none.temperature || none.top_k || none.top_p);
  EXPECT_TRUE(none.ignored.empty());
  EXPECT_EQ(parse_generation_config(R"({"eos_token_id": 4})", "g.json").end, std::vector<int64_t>{4});

  const SpecialTokens config{.begin = 8, .end = {9}, .pad = 3};
  EXPECT_EQ(generation_tokens(config, none), config);
  EXPECT_EQ(generation_tokens(config, full), (SpecialTokens{.begin = 1, .end = {2, 5}, .pad = 3}));
  for (const char* text : {"", "[]", R"({"eos_token_id": "</s>"})", R"({"do_sample": 1})", R"({"temperature": "hot"})",
                           R"({"top_k": -1})", R"({"top_p": []})"}) {
    EXPECT_THAT(error_of<DataError>([&] { parse_generation_config(text, "some/g.json"); }), HasSubstr("some/g.json"))
        << text;
  }
  const std::string deep = R"({"top_k": )" + std::string(400'000, '[');
  EXPECT_THAT(error_of<DataError>([&] { parse_generation_config(deep, "some/g.json"); }), HasSubstr("some/g.json"));
  EXPECT_THAT(error_of<DataError>([&] { parse_special_tokens(deep, "some/c.json"); }), HasSubstr("some/c.json"));
}

struct Refusal {
  ModelConfig config;
  std::string key;
  json value;
  std::string fact;
};

TEST(HuggingfaceConfig, whatNoModelHereComputesIsRefusedByKey) {
  const std::vector<Refusal> refusals{
      {kGpt2, "activation_function", "relu", "is 'relu'"},
      {kGpt2, "activation_function", "gelu", "is 'gelu'"},
      {kGpt2, "scale_attn_by_inverse_layer_idx", true, "is true"},
      {kGpt2, "scale_attn_weights", false, "is false"},
      {kGpt2, "add_cross_attention", true, "is true"},
      {kGpt2, "resid_pdrop", 0.5, "attn_pdrop is 0.25"},
      {kGpt2, "quantization_config", {{"bits", 4}}, "quantized"},
      {kGpt2, "model_type", "qwen2", "is 'qwen2'; the supported types are gpt2 and llama"},
      {kGpt2, "n_layer", nullptr, "is missing"},
      {kGpt2, "n_layer", "3", "not a count"},
      {kGpt2, "n_layer", 1.5, "not a count"},
      {kGpt2, "n_layer", -1, "not a count"},
      {kGpt2, "n_embd", int64_t{1} << 62, "not a count"},
      {kGpt2, "layer_norm_epsilon", "small", "not a number"},
      {kLlama, "hidden_act", "gelu", "is 'gelu'"},
      {kLlama, "attention_bias", true, "is true"},
      {kLlama, "mlp_bias", true, "is true"},
      {kLlama, "mlp_bias", 1, "not true or false"},
      {kLlama, "head_dim", 8, "hidden_size 24 over 6 heads is 4"},
      {kLlama, "rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}, "is 'llama3'"},
      {kLlama, "rope_scaling", {{"type", "linear"}, {"factor", 8.0}}, "is 'linear'"},
      {kLlama, "rope_parameters", {{"rope_type", "yarn"}}, "is 'yarn'"},
      {kLlama, "rope_parameters", 3, "not an object"},
  };
  for (const Refusal& refusal : refusals) {
    json object = json::parse(huggingface_config(refusal.config));
    object[refusal.key] = refusal.value;
    EXPECT_THAT(error_of<DataError>([&] { parse_huggingface_config(object.dump(), "some/config.json"); }),
                AllOf(HasSubstr(refusal.key), HasSubstr(refusal.fact), HasSubstr("some/config.json")))
        << refusal.key;
  }
}

TEST(HuggingfaceConfig, impossibleModelsAndOtherTextAreRefused) {
  json object = json::parse(huggingface_config(kLlama));
  object["num_key_value_heads"] = 4;
  EXPECT_THAT(error_of<DataError>([&] { parse_huggingface_config(object.dump(), "config.json"); }),
              HasSubstr("4 kv_heads do not divide 6 heads"));
  for (const char* text : {"", "{", "[]", "null", "\xff", "{\"model_type\": \"\xff\"}"}) {
    EXPECT_THAT(error_of<DataError>([&] { parse_huggingface_config(text, "config.json"); }), HasSubstr("config.json"))
        << text;
  }
}

}  // namespace
}  // namespace caravan
