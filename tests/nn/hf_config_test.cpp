#include "caravan/nn/hf_config.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
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
  const json written = json::parse(huggingface_config(config, {.begin = 7, .end = 8}, "bfloat16"));
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
      {kGpt2, "quantization_config", {{"bits", 4}}, "quantised"},
      {kGpt2, "model_type", "mamba", "is 'mamba'"},
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
