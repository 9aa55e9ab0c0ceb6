#include "caravan/formats/huggingface/hf_config.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/formats/huggingface/architectures/architecture_row.h"
#include "caravan/formats/huggingface/config_text.h"
#include "caravan/formats/huggingface/hf_generation.h"
#include "caravan/nn/lora.h"
#include "tests/formats/small_models.h"
#include "tests/ranks/rank_case.h"

namespace caravan::hf_config_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

const ModelConfig kGpt2{.layers = 3,
                        .width = 20,
                        .heads = 5,
                        .kv_heads = 5,
                        .context = 31,
                        .vocabulary = 101,
                        .hidden = 77,
                        .tie_embeddings = false,
                        .dropout = 0.25,
                        .norm_epsilon = 1e-6};
const ModelConfig kLlama{.arch = Architecture::llama(),
                         .layers = 2,
                         .width = 24,
                         .heads = 6,
                         .kv_heads = 2,
                         .context = 64,
                         .vocabulary = 99,
                         .hidden = 50,
                         .dropout = 0.125,
                         .rope_theta = 5e5};

/// kLlama with another MLP.
ModelConfig mixtral() {
  ModelConfig config = kLlama;
  config.moe = {.experts = 6, .top_k = 3, .balance_loss = 0.03};
  return config;
}
ModelConfig qwen2() {
  ModelConfig config = kLlama;
  config.arch.qkv_bias = true;
  return config;
}
ModelConfig qwen2_moe() {
  ModelConfig config = kLlama;
  config.arch.qkv_bias = true;
  config.moe = {.experts = 8, .normalize = false, .shared_hidden = 70, .shared_gate = true, .balance_loss = 0};
  return config;
}

TEST(HuggingfaceConfig, roundTrips) {
  ModelConfig gpt2 = kGpt2;
  gpt2.kv_heads = 0;
  ModelConfig other_qwen2_moe = qwen2_moe();
  other_qwen2_moe.arch.qkv_bias = false;
  other_qwen2_moe.moe.normalize = true;
  const std::vector<std::pair<ModelConfig, std::string>> models{
      {gpt2, "gpt2"},         {kLlama, "llama"},          {qwen2(), "qwen2"},
      {mixtral(), "mixtral"}, {qwen2_moe(), "qwen2_moe"}, {other_qwen2_moe, "qwen2_moe"}};
  for (const auto& [config, type] : models) {
    const std::string written = huggingface_config(config);
    EXPECT_EQ(json::parse(written)["model_type"], type);
    const ModelConfig read = parse_huggingface_config(written, "config.json");
    EXPECT_EQ(read, config) << type;
    EXPECT_EQ(huggingface_config(read), written) << type;
  }
}

TEST(HuggingfaceConfig, settingsOfTrainingAloneAreLeftOut) {
  ModelConfig config = mixtral();
  config.moe.z_loss = 0.001;
  config.moe.balance = BalanceScope::batch;
  EXPECT_EQ(parse_huggingface_config(huggingface_config(config), "config.json"), mixtral());
}

TEST(HuggingfaceConfig, aModelThatTransformersLacksIsRefusedByItsSetting) {
  const auto refused = [](ModelConfig config, const auto& change, const std::string& key, const std::string& nearest) {
    change(config);
    EXPECT_THAT(error_of<UsageError>([&] { huggingface_config(config); }),
                AllOf(HasSubstr(key + ":"), HasSubstr("has no such model"), HasSubstr(nearest)));
  };
  refused(
      kGpt2, [](ModelConfig& c) { c.moe.experts = 4; }, "moe.experts", "gpt2");
  refused(
      mixtral(), [](ModelConfig& c) { c.moe.gates = Gates::sigmoid; }, "moe.gates", "mixtral");
  refused(
      mixtral(), [](ModelConfig& c) { c.moe.normalize = false; }, "moe.normalize", "mixtral");
  refused(
      mixtral(), [](ModelConfig& c) { c.arch.qkv_bias = true; }, "model.qkv_bias", "mixtral");
  refused(
      qwen2_moe(), [](ModelConfig& c) { c.moe.shared_gate = false; }, "moe.shared_gate", "qwen2_moe");
}

TEST(ConfigText, keepsEverySettingAlsoOfAModelThatTransformersLacks) {
  const MoeConfig moe{.experts = 5,
                      .top_k = 1,
                      .gates = Gates::sigmoid,
                      .normalize = false,
                      .shared_hidden = 9,
                      .capacity = 1.25,
                      .balance_loss = 0.02,
                      .z_loss = 0.001};
  ModelConfig gpt2 = kGpt2;
  gpt2.kv_heads = 0;
  gpt2.moe = moe;
  ModelConfig llama = qwen2();
  llama.moe = {.experts = 3, .shared_hidden = 4, .shared_gate = true, .balance = BalanceScope::batch};
  ModelConfig adapted = gpt2;
  adapted.lora = {.rank = 3,
                  .alpha = 1.5,
                  .targets = {"query", "mlp.shared.*"},
                  .dropout = 0.25,
                  .rslora = true,
                  .dora = true,
                  .saved = {"embedding", "head"}};
  const SpecialTokens tokens{.begin = 3, .end = {4}};
  for (const ModelConfig& config : {gpt2, llama, adapted, kLlama, qwen2(), mixtral()}) {
    const std::string text = config_text(config, tokens);
    EXPECT_EQ(parse_config_text(text, "manifest.json"), config);
    EXPECT_EQ(parse_special_tokens(text, "manifest.json"), tokens);
  }
}

/// Patterns meant all layers but the tables of experts, and the text said nothing of it.
TEST(ConfigText, adaptersOfEarlierVersionsAreNotOfExperts) {
  ModelConfig config = qwen2_moe();
  config.lora = {.rank = 3, .targets = {"*"}, .dropout = 0.25, .dora = true, .experts = false};
  json old = json::parse(config_text(config));
  EXPECT_EQ(old["lora"].erase("experts"), 1U);
  EXPECT_EQ(parse_config_text(old.dump(), "manifest.json"), config);
  EXPECT_EQ(parse_config_text(config_text(config), "manifest.json"), config);
  EXPECT_TRUE(has_adapter(config, "mlp.shared.up"));
  EXPECT_FALSE(has_adapter(config, "mlp.experts.up"));
  config.lora = {.rank = 3, .targets = {"*"}};
  EXPECT_EQ(parse_config_text(config_text(config), "manifest.json"), config);
  EXPECT_TRUE(has_adapter(config, "mlp.experts.up"));
}

TEST(ConfigText, everySettingIsChecked) {
  const auto refusal = [&](const char* key, const json& value) {
    json object = json::parse(config_text(mixtral()));
    object["settings"][key] = value;
    return error_of<DataError>([&] { parse_config_text(object.dump(), "some/manifest.json"); });
  };
  EXPECT_THAT(refusal("moe.gates", "relu"), AllOf(HasSubstr("moe.gates"), HasSubstr("is \"relu\"")));
  EXPECT_THAT(refusal("moe.top_k", nullptr), HasSubstr("moe.top_k"));
  EXPECT_THAT(refusal("moe.top_k", 7), AllOf(HasSubstr("moe.top_k"), HasSubstr("some/manifest.json")));
  EXPECT_THAT(refusal("model.full_layers", "odd"), HasSubstr("model.full_layers"));
  EXPECT_THAT(refusal("model.colour", 1), AllOf(HasSubstr("model.colour"), HasSubstr("no setting of a model")));
  EXPECT_THAT(refusal("model.parallel", "yes"), HasSubstr("model.parallel"));
}

/// A config.json, with all settings of experts in a member `moe`.
TEST(ConfigText, ofEarlierVersionsIsRead) {
  const SpecialTokens tokens{.begin = 3, .end = {4}};
  EXPECT_EQ(parse_config_text(huggingface_config(kLlama, tokens), "manifest.json"), kLlama);
  ModelConfig gpt2 = kGpt2;
  gpt2.kv_heads = 0;
  json old = json::parse(huggingface_config(gpt2, tokens));
  old["moe"] = {{"experts", 5},         {"top_k", 1},           {"gates", "sigmoid"}, {"normalize", false},
                {"shared_hidden", 9},   {"shared_gate", false}, {"capacity", 1.25},   {"balance", "batch"},
                {"balance_loss", 0.02}, {"z_loss", 0.001}};
  const auto refusal = [&](const char* key, const json& value) {
    json object = old;
    object["moe"][key] = value;
    return error_of<DataError>([&] { parse_config_text(object.dump(), "some/manifest.json"); });
  };
  old["moe"]["capacity"] = 0;
  gpt2.moe = {.experts = 5,
              .top_k = 1,
              .gates = Gates::sigmoid,
              .normalize = false,
              .shared_hidden = 9,
              .balance = BalanceScope::batch,
              .balance_loss = 0.02,
              .z_loss = 0.001};
  EXPECT_EQ(parse_config_text(old.dump(), "manifest.json"), gpt2);
  EXPECT_THAT(refusal("gates", "relu"), AllOf(HasSubstr("moe.gates"), HasSubstr("is 'relu'")));
  EXPECT_THAT(refusal("balance", "none"), AllOf(HasSubstr("moe.balance"), HasSubstr("is 'none'")));
  EXPECT_THAT(refusal("top_k", nullptr), AllOf(HasSubstr("moe.top_k"), HasSubstr("is missing")));
  EXPECT_THAT(refusal("top_k", 6), AllOf(HasSubstr("moe.top_k"), HasSubstr("some/manifest.json")));
}

TEST(HuggingfaceConfig, ownRulesAreWrittenOut) {
  const ModelConfig config{.arch = Architecture::llama(), .width = 24, .heads = 6, .vocabulary = 9};
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

TEST(HuggingfaceConfig, missingKeysOfExpertsHaveTheDefaultsOfTransformers) {
  const auto read = [](json object) {
    object.update({{"num_hidden_layers", 1},
                   {"hidden_size", 64},
                   {"num_attention_heads", 32},
                   {"intermediate_size", 12},
                   {"max_position_embeddings", 16},
                   {"vocab_size", 5}});
    return parse_huggingface_config(object.dump(), "config.json");
  };
  const ModelConfig mixtral = read({{"model_type", "mixtral"}, {"num_local_experts", 4}});
  EXPECT_EQ(mixtral.kv_heads, 8);
  EXPECT_EQ(mixtral.norm_epsilon, 1e-5);
  EXPECT_EQ(mixtral.rope_theta, 1e6);
  EXPECT_EQ(mixtral.moe, (MoeConfig{.experts = 4, .top_k = 2, .balance_loss = 0.001}));
  EXPECT_EQ(read({{"model_type", "mixtral"}, {"num_local_experts", 4}, {"num_key_value_heads", nullptr}}).kv_heads, 32);
  const ModelConfig qwen2_moe = read({{"model_type", "qwen2_moe"},
                                      {"num_experts", 8},
                                      {"moe_intermediate_size", 3},
                                      {"shared_expert_intermediate_size", 7}});
  EXPECT_EQ(qwen2_moe.kv_heads, 16);
  EXPECT_EQ(qwen2_moe.hidden, 3);
  EXPECT_EQ(qwen2_moe.norm_epsilon, 1e-6);
  EXPECT_EQ(qwen2_moe.rope_theta, 10000);
  EXPECT_TRUE(qwen2_moe.arch.qkv_bias);
  EXPECT_EQ(qwen2_moe.moe, (MoeConfig{.experts = 8,
                                      .top_k = 4,
                                      .normalize = false,
                                      .shared_hidden = 7,
                                      .shared_gate = true,
                                      .balance_loss = 0.001}));
  const ModelConfig qwen2 = read({{"model_type", "qwen2"},
                                  {"use_sliding_window", false},
                                  {"sliding_window", 4},
                                  {"layer_types", {"full_attention"}}});
  EXPECT_EQ(qwen2.kv_heads, 32);
  EXPECT_TRUE(qwen2.arch.qkv_bias);
  EXPECT_FALSE(qwen2.moe.is_used());
}

TEST(HuggingfaceConfig, olderNamesOfKeysAreRead) {
  const ModelConfig bloom = parse_huggingface_config(
      R"({"model_type": "bloom", "num_hidden_layers": 3, "n_embed": 8, "num_attention_heads": 2, "vocab_size": 5})",
      "config.json");
  EXPECT_EQ(bloom.layers, 3);
  EXPECT_EQ(bloom.width, 8);
  const char* const kGemma = R"({"model_type": "gemma", "num_hidden_layers": 1, "hidden_size": 8, "hidden_act": "gelu",
      "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 12, "max_position_embeddings": 16,
      "vocab_size": 5})";
  EXPECT_EQ(parse_huggingface_config(kGemma, "config.json").arch.activation, Activation::gelu_tanh);
  json gemma3 = json::parse(kGemma);
  gemma3.update({{"model_type", "gemma3_text"}, {"num_hidden_layers", 4}, {"sliding_window_pattern", 2}});
  const ModelConfig gemma = parse_huggingface_config(gemma3.dump(), "config.json");
  EXPECT_EQ(gemma.full_layers, LayerSet::every(2));
  // vLLM refuses other names.
  EXPECT_EQ(json::parse(huggingface_config(gemma)).at("hidden_activation"), "gelu_pytorch_tanh");
  json phi3 = json::parse(kGemma);
  phi3.update({{"model_type", "phi3"},
               {"hidden_act", "silu"},
               {"original_max_position_embeddings", 4},
               {"rope_scaling", {{"type", "su"}, {"short_factor", {1, 2}}, {"long_factor", {2, 3}}}}});
  const RopeScaling scaling = parse_huggingface_config(phi3.dump(), "config.json").rope_scaling;
  EXPECT_EQ(scaling.kind, RopeScalingKind::longrope);
  EXPECT_EQ(scaling.original_context, 4);
  EXPECT_EQ(scaling.factor, 4);
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
    for (const ModelConfig& config : {kGpt2, kLlama, qwen2_moe(), mixtral()}) {
      EXPECT_EQ(parse_special_tokens(huggingface_config(config, tokens), "config.json"), tokens);
    }
  }
  // transformers' LlamaConfig and GPT2Config have these defaults; null means that there is no such token.
  json object = json::parse(huggingface_config(kLlama));
  EXPECT_EQ(parse_special_tokens(object.dump(), "config.json"), SpecialTokens{});
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) object.erase(key);
  EXPECT_EQ(parse_special_tokens(object.dump(), "config.json"), (SpecialTokens{.begin = 1, .end = {2}}));
  object["model_type"] = "qwen2";
  EXPECT_EQ(parse_special_tokens(object.dump(), "config.json"), SpecialTokens{});
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
          "top_k": 7, "top_p": 0.9, "repetition_penalty": 1.1, "num_beams": 4, "min_p": 0.05, "typical_p": 0.8,
          "no_repeat_ngram_size": 0, "length_penalty": 0.5, "stop_strings": ["x"],
          "max_new_tokens": 9, "max_length": 142, "early_stopping": true, "transformers_version": "5"})",
      "generation_config.json");
  EXPECT_EQ(full.begin, 1);
  EXPECT_EQ(full.end, (std::vector<int64_t>{2, 5}));
  EXPECT_EQ(full.do_sample, true);
  EXPECT_EQ(full.temperature, 0.6);
  EXPECT_EQ(full.top_k, 7);
  EXPECT_EQ(full.top_p, 0.9);
  EXPECT_EQ(full.ignored, (std::vector<std::string>{"num_beams = 4", "early_stopping = true", "max_length = 142"}));
  EXPECT_EQ(full.min_p, 0.05);
  EXPECT_EQ(full.typical_p, 0.8);
  EXPECT_EQ(full.repetition_penalty, 1.1);
  EXPECT_EQ(full.length_penalty, 0.5);
  EXPECT_EQ(full.max_new_tokens, 9);
  EXPECT_EQ(full.stop_strings, std::vector<std::string>{"x"});
  EXPECT_EQ(parse_generation_config(R"({"stop_strings": "a\nb"})", "g.json").stop_strings,
            std::vector<std::string>{"a\nb"});

  const GenerationConfig none = parse_generation_config(R"({"eos_token_id": null, "top_k": null})", "g.json");
  EXPECT_FALSE(none.end || none.begin || none.do_sample || none.temperature || none.top_k || none.top_p || none.min_p);
  EXPECT_TRUE(none.ignored.empty());
  EXPECT_EQ(parse_generation_config(R"({"eos_token_id": 4})", "g.json").end, std::vector<int64_t>{4});

  const SpecialTokens config{.begin = 8, .end = {9}, .pad = 3};
  EXPECT_EQ(generation_tokens(config, none), config);
  EXPECT_EQ(generation_tokens(config, full), (SpecialTokens{.begin = 1, .end = {2, 5}, .pad = 3}));
  for (const char* text :
       {"", "[]", R"({"eos_token_id": "</s>"})", R"({"do_sample": 1})", R"({"temperature": "hot"})", R"({"top_k": -1})",
        R"({"top_p": []})", R"({"stop_strings": [3]})", R"({"max_new_tokens": 0})"}) {
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

TEST(HuggingfaceConfig, unsupportedSettingsAreRefusedByKey) {
  const std::vector<Refusal> refusals{
      {kGpt2, "activation_function", "mish", "is 'mish'"},
      {kGpt2, "scale_attn_by_inverse_layer_idx", true, "is true"},
      {kGpt2, "scale_attn_weights", false, "is false"},
      {kGpt2, "add_cross_attention", true, "is true"},
      {kGpt2, "resid_pdrop", 0.5, "attn_pdrop is 0.25"},
      {kGpt2, "quantization_config", {{"bits", 4}, {"quant_method", "gptq"}}, "quantized by the method \"gptq\""},
      {kGpt2, "model_type", "gptj", "is 'gptj'; the supported types are gpt2, llama, mistral, "},
      {kLlama, "model_type", "qwen4", "the nearest is 'qwen"},
      {kLlama, "model_type", "gemma3", "its text part alone is gemma3_text"},
      {kGpt2, "n_layer", nullptr, "is missing"},
      {kGpt2, "n_layer", "3", "not a count"},
      {kGpt2, "n_layer", 1.5, "not a count"},
      {kGpt2, "n_layer", -1, "not a count"},
      {kGpt2, "n_embd", int64_t{1} << 62, "not a count"},
      {kGpt2, "layer_norm_epsilon", "small", "not a number"},
      {kLlama, "hidden_act", "quick_gelu", "is 'quick_gelu'"},
      {kLlama, "mlp_bias", 1, "not true or false"},
      {kLlama, "num_hidden_layers", 1 << 20, "is above 65536"},
      {kLlama, "rope_scaling", {{"rope_type", "mrope"}, {"factor", 8.0}}, "is 'mrope'; there are default, linear"},
      {kLlama, "rope_parameters", {{"rope_type", "yarn"}}, "is missing"},
      {kLlama, "rope_parameters", {{"rope_type", "longrope"}, {"short_factor", {1, "a"}}}, "not a list of numbers"},
      {kLlama, "rope_parameters", 3, "not an object"},
      {mixtral(), "sliding_window", -16, "not a whole number"},
      {mixtral(), "router_jitter_noise", 0.1, "is 0.1, not 0"},
      {mixtral(), "num_local_experts", nullptr, "is missing"},
      {qwen2_moe(), "num_experts", 0, "not a count"},
      {qwen2_moe(), "mlp_only_layers", {-1}, "not a list of numbers of layers"},
      {qwen2_moe(), "shared_expert_intermediate_size", nullptr, "is missing"},
      {qwen2(), "layer_types", {"full_attention", "sliding_attention"}, "there is no sliding_window in use"},
      {qwen2(), "layer_types", {"full_attention", "linear_attention"}, "which is neither full_attention nor"},
      {qwen2(), "layer_types", {"full_attention"}, "is not a list of 2 types"},
  };
  for (const Refusal& refusal : refusals) {
    json object = json::parse(huggingface_config(refusal.config));
    object[refusal.key] = refusal.value;
    EXPECT_THAT(error_of<DataError>([&] { parse_huggingface_config(object.dump(), "some/config.json"); }),
                AllOf(HasSubstr(refusal.key), HasSubstr(refusal.fact), HasSubstr("some/config.json")))
        << refusal.key;
  }
}

TEST(HuggingfaceConfig, headsOfOtherKindsAreRefused) {
  ModelConfig bert{.layers = 2, .width = 16, .heads = 2, .context = 8, .vocabulary = 40};
  set_architecture(bert, *find_architecture("bert"));
  bert.tie_embeddings = true;
  bert.classes = 2;
  const json classes = json::parse(huggingface_config(bert));
  const auto refusal = [&](const std::map<std::string, json>& changes) {
    json object = classes;
    for (const auto& [key, value] : changes) object[key] = value;
    return error_of<DataError>([&] { parse_huggingface_config(object.dump(), "some/config.json"); });
  };
  EXPECT_THAT(refusal({{"architectures", {"BertForTokenClassification"}}}),
              AllOf(HasSubstr("is BertForTokenClassification, whose head is not supported"), HasSubstr("base model")));
  EXPECT_THAT(refusal({{"id2label", {{"0", "much"}}}}), HasSubstr("regression"));
  EXPECT_THAT(refusal({{"id2label", nullptr}, {"num_labels", 1}}), HasSubstr("num_labels: has one label"));
  EXPECT_THAT(refusal({{"id2label", nullptr}, {"num_labels", int64_t{1} << 40}}), HasSubstr("is above"));
  EXPECT_THAT(refusal({{"id2label", {{"0", "a"}, {"1", "a"}}}}), HasSubstr("gives two classes one name"));
  // An untied head of masked tokens, which transformers does not have.
  bert.classes = 0;
  bert.tie_embeddings = false;
  EXPECT_THAT(error_of<UsageError>([&] { huggingface_config(bert); }), HasSubstr("tie_word_embeddings"));
}

/// Of a model that a recipe describes, its own width of heads is 0.
TEST(HuggingfaceConfig, theWidthOfHeadsIsWrittenOut) {
  for (const ArchitectureRow& row : architectures()) {
    ModelConfig config =
        testing::small_model(row, {.layers = 4, .width = 32, .heads = 4, .context = 8, .vocabulary = 40, .hidden = 48});
    config.own_head_width = 0;
    const ModelConfig back = parse_huggingface_config(huggingface_config(config), "config.json");
    EXPECT_EQ(back.head_width(), 8) << row.name;
    EXPECT_EQ(back.num_parameters(), config.num_parameters()) << row.name;
  }
}

TEST(HuggingfaceConfig, theFirstTokenOfTargetsIsOneOfTheModel) {
  ModelConfig t5{.layers = 2, .width = 16, .heads = 2, .context = 8, .vocabulary = 40};
  set_architecture(t5, *find_architecture("t5"));
  t5.encoder_layers = 1;
  t5.source_context = 8;
  const SpecialTokens tokens{.end = {1}, .pad = 0, .decoder_start = 7, .prompt_end = 1};
  EXPECT_EQ(parse_special_tokens(huggingface_config(t5, tokens), "config.json"), tokens);
  EXPECT_EQ(parse_special_tokens(config_text(t5, tokens), "manifest"), tokens);
  EXPECT_THAT(
      error_of<DataError>([&] { parse_special_tokens(huggingface_config(t5, {.decoder_start = 40}), "config.json"); }),
      HasSubstr("decoder_start_token_id: is 40, but the model has 40 tokens"));
}

TEST(HuggingfaceConfig, impossibleModelsAndOtherTextAreRefused) {
  json object = json::parse(huggingface_config(kLlama));
  object["num_key_value_heads"] = 4;
  EXPECT_THAT(error_of<DataError>([&] { parse_huggingface_config(object.dump(), "config.json"); }),
              HasSubstr("4 kv_heads do not divide 6 heads"));
  const auto refusal = [](const ModelConfig& config, const char* key, const json& value) {
    json changed = json::parse(huggingface_config(config));
    changed[key] = value;
    return error_of<DataError>([&] { parse_huggingface_config(changed.dump(), "config.json"); });
  };
  EXPECT_THAT(refusal(kLlama, "rope_parameters", {{"rope_type", "longrope"}, {"short_factor", {1}}}),
              HasSubstr("1 short and 0 long factors"));
  EXPECT_THAT(refusal(kLlama, "rope_parameters", {{"partial_rotary_factor", 0.75}}), HasSubstr("is 0.75, not 1"));
  EXPECT_THAT(refusal(qwen2_moe(), "decoder_sparse_step", 3), HasSubstr("\"every 1\" of 2 layers"));
  EXPECT_THAT(refusal(qwen2_moe(), "mlp_only_layers", {0, 1}), HasSubstr("\"every 1\" of 2 layers"));
  object = json::parse(huggingface_config(mixtral()));
  object["num_experts_per_tok"] = 7;
  EXPECT_THAT(error_of<DataError>([&] { parse_huggingface_config(object.dump(), "config.json"); }),
              HasSubstr("7 of 6 experts"));
  for (const char* text : {"", "{", "[]", "null", "\xff", "{\"model_type\": \"\xff\"}"}) {
    EXPECT_THAT(error_of<DataError>([&] { parse_huggingface_config(text, "config.json"); }), HasSubstr("config.json"))
        << text;
  }
}

}  // namespace
}  // namespace caravan::hf_config_test
