#include "caravan/formats/peft/peft.h"

#include <cmath>
#include <functional>
#include <gmock/gmock.h>
#include <map>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/formats/huggingface/architectures/architecture_row.h"
#include "caravan/formats/safetensors/tensor_file.h"
#include "caravan/models/model.h"
#include "caravan/nn/lora.h"
#include "tests/data/support.h"

namespace caravan::peft_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

NamedTensors values_of(const ModelConfig& config) {
  NamedTensors values;
  double shift = 0;
  const Model model(config);
  for (const Parameter* parameter : model.parameters()) {
    int64_t count = 1;
    for (const int64_t size : parameter->global_shape()) count *= size;
    shift += 0.3;
    values.emplace_back(parameter->name(),
                        at::arange(count, at::kFloat).add(shift).sin().view(parameter->global_shape()));
  }
  return values;
}

/// A folder of adapters as PEFT writes them, of rank 4 and alpha 8, which each test changes.
class Peft : public ::testing::Test {
 protected:
  Peft() {
    NamedTensors adapters;
    for (const LinearShape& layer : adapted_layers(config_)) {
      const auto values = [&](int64_t rows, int64_t columns) {
        return at::arange(rows * columns, at::kFloat).mul(0.1).sin().view({rows, columns});
      };
      adapters.emplace_back(layer.name + ".lora.a.weight", values(config_.lora.rank, layer.in));
      adapters.emplace_back(layer.name + ".lora.b.weight", values(layer.out, config_.lora.rank));
    }
    write_peft(folder_.path(), config_, adapters, "a/base");
    settings_ = json::parse(read_file(folder_ / kPeftConfig));
    const SafetensorsFile file(folder_ / kPeftWeights);
    for (const auto& [name, entry] : file.tensors()) weights_.emplace_back(name, read_tensor(file, name));
  }

  NamedTensors read() const {
    ModelConfig adapted = config_;
    adapted.lora = read_peft_config(folder_.path(), config_).lora;
    return read_peft(folder_.path(), adapted);
  }

  /// The error after a change of the configuration; "" if there is none.
  std::string refusal(const std::function<void(json&)>& change) const {
    json changed = settings_;
    change(changed);
    write_file(folder_ / kPeftConfig, changed.dump());
    std::string message;
    try {
      read();
    } catch (const DataError& error) {
      message = error.what();
    }
    write_file(folder_ / kPeftConfig, settings_.dump());
    return message;
  }
  std::string refusal(const char* key, const json& value) const {
    return refusal([&](json& root) { root[key] = value; });
  }

  const ModelConfig config_{.arch = Architecture::llama(),
                            .layers = 2,
                            .width = 16,
                            .heads = 2,
                            .context = 8,
                            .vocabulary = 32,
                            .lora = {.rank = 4, .alpha = 8, .targets = {"query", "value"}}};
  TemporaryFolder folder_;
  json settings_;
  NamedTensors weights_;
};

TEST_F(Peft, IsReadAsItWasWritten) {
  EXPECT_EQ(read().size(), 8U);
  const LoraConfig lora = read_peft_config(folder_.path(), config_).lora;
  EXPECT_EQ(lora.rank, 4);
  EXPECT_EQ(lora.alpha, 8);
}

/// These begin with a part of the base's weights, which they leave out of the base.
TEST_F(Peft, AdaptersThatChangedTheirBaseAreRefused) {
  for (const char* kind : {"pissa", "pissa_niter_16", "olora", "OLoRA", "corda", "loftq", "lora_ga", "of_later"}) {
    EXPECT_THAT(refusal("init_lora_weights", kind),
                AllOf(HasSubstr(kPeftConfig), HasSubstr(std::string("init_lora_weights is \"") + kind),
                      HasSubstr("path_initial_model_for_weight_conversion")));
  }
  EXPECT_THAT(refusal("init_lora_weights", 3), HasSubstr("init_lora_weights is 3"));
  for (const json& kind : {json(true), json(false), json(), json("gaussian"), json("eva"), json("orthogonal")}) {
    EXPECT_EQ(refusal("init_lora_weights", kind), "") << kind;
  }
}

TEST_F(Peft, TheRankOfEachLayerIsThatOfItsTensors) {
  EXPECT_THAT(refusal("r", 3), AllOf(HasSubstr("has rank 4, but adapter_config.json says 3"), HasSubstr("q_proj")));
  EXPECT_THAT(refusal("r", 4.5), HasSubstr("says 4.5"));
  EXPECT_THAT(refusal("rank_pattern", {{"v_proj", 2}}), AllOf(HasSubstr("v_proj"), HasSubstr("says 2")));
  EXPECT_EQ(refusal([](json& root) {
              root["r"] = 16;
              root["rank_pattern"] = {{"v_proj", 4}, {"self_attn.q_proj", 4}};
            }),
            "");
  EXPECT_THAT(refusal("rank_pattern", 4), HasSubstr("rank_pattern is not an object"));
  EXPECT_THAT(refusal("rank_pattern", {{"layers\\.\\d+\\.self_attn.q_proj", 4}}), HasSubstr("regular expression"));
}

/// PEFT takes the first matching pattern, in the order of the file.
TEST_F(Peft, TheFirstPatternCounts) {
  const std::string name = "model.layers.0.self_attn.q_proj";
  const auto alpha_of = [&](const std::string& patterns) {
    std::string text = settings_.dump();
    const std::string none = R"("alpha_pattern":{})";
    text.replace(text.find(none), none.size(), "\"alpha_pattern\":" + patterns);
    write_file(folder_ / kPeftConfig, text);
    for (const PeftScale& layer : read_peft_config(folder_.path(), config_).layers) {
      if (layer.theirs == name) return layer.scale * 4;
    }
    return 0.0;
  };
  EXPECT_EQ(alpha_of(R"({"q_proj":3,")" + name + R"(":5})"), 3);
  EXPECT_EQ(alpha_of(R"({")" + name + R"(":5,"q_proj":3})"), 5);
}

TEST_F(Peft, InvalidNumbersAreRefused) {
  for (const json& alpha : {json(0), json(-1), json(1e39), json("8"), json(), json(true), json::array({8})}) {
    EXPECT_THAT(refusal("lora_alpha", alpha), HasSubstr("lora_alpha is not a number above 0")) << alpha;
    EXPECT_NE(refusal("alpha_pattern", {{"q_proj", alpha}}), "") << alpha;
  }
  for (const char* text : {"1e999", "Infinity", "NaN"}) {
    std::string changed = settings_.dump();
    const std::string alpha = "\"lora_alpha\":8.0";
    ASSERT_NE(changed.find(alpha), std::string::npos) << changed;
    changed.replace(changed.find(alpha), alpha.size(), std::string("\"lora_alpha\":") + text);
    write_file(folder_ / kPeftConfig, changed);
    EXPECT_THAT(message_of<DataError>([&] { read(); }), HasSubstr("adapter_config.json: is not a JSON object")) << text;
  }
}

TEST_F(Peft, OtherMethodsAreRefused) {
  const std::vector<std::pair<const char*, json>> others{{"bias", "lora_only"},
                                                         {"lora_bias", true},
                                                         {"modules_to_save", {"lm_head"}},
                                                         {"layer_replication", {{0, 2}}},
                                                         {"use_qalora", true},
                                                         {"trainable_token_indices", {3}},
                                                         {"target_parameters", {"w"}},
                                                         {"alora_invocation_tokens", {1, 2}},
                                                         {"megatron_config", {{"x", 1}}},
                                                         {"arrow_config", {{"top_k", 2}}},
                                                         {"a_method_of_later", "yes"}};
  for (const auto& [key, value] : others) {
    EXPECT_THAT(refusal(key, value), HasSubstr(std::string("sets ") + key)) << value;
    for (const json& unset : {json(), json(false), json::array(), json::object()}) EXPECT_EQ(refusal(key, unset), "");
  }
  EXPECT_EQ(refusal("bias", "none"), "");
  EXPECT_THAT(refusal("peft_type", "IA3"), HasSubstr("peft_type is \"IA3\""));
  EXPECT_THAT(refusal("peft_type", 7), HasSubstr("peft_type is 7"));
  EXPECT_THAT(refusal("use_rslora", "yes"), HasSubstr("use_rslora is \"yes\""));
  EXPECT_THAT(refusal("use_dora", "yes"), HasSubstr("use_dora is \"yes\""));
  EXPECT_THAT(refusal("use_dora", true), HasSubstr("q_proj.lora_magnitude_vector, and use_dora is set"));
  // How they were trained does not matter, nor which way round the base stores its weights.
  for (const auto& [key, value] : std::vector<std::pair<const char*, json>>{
           {"fan_in_fan_out", true}, {"lora_dropout", 0.1}, {"peft_version", "0.18.0"}, {"revision", "main"}}) {
    EXPECT_EQ(refusal(key, value), "") << key;
  }
}

TEST_F(Peft, RankStabilisedScalesAreKept) {
  EXPECT_EQ(refusal("use_rslora", true), "");
  settings_["use_rslora"] = true;
  write_file(folder_ / kPeftConfig, settings_.dump());
  const PeftConfig config = read_peft_config(folder_.path(), config_);
  EXPECT_DOUBLE_EQ(config.layers.front().scale, 8 / 2.0);
  EXPECT_TRUE(config.lora.rslora);
  EXPECT_EQ(config.lora.alpha, 8);
  EXPECT_DOUBLE_EQ(config.lora.scale(), 8 / 2.0);
}

TEST_F(Peft, TheDropoutIsKept) {
  settings_["lora_dropout"] = 0.25;
  write_file(folder_ / kPeftConfig, settings_.dump());
  EXPECT_EQ(read_peft_config(folder_.path(), config_).lora.dropout, 0.25);
  for (const json& wrong : std::vector<json>{1.0, -0.5, "x"}) {
    EXPECT_THAT(refusal("lora_dropout", wrong),
                AllOf(HasSubstr(kPeftConfig), HasSubstr("lora_dropout is " + wrong.dump()), HasSubstr("0.99")));
  }
}

/// Magnitudes, saved modules and their settings, in both directions.
TEST(PeftOfAll, ComesBackAsItWas) {
  for (const char* kind : {"llama", "gpt2"}) {
    ModelConfig config{.layers = 2, .width = 16, .heads = 2, .context = 8, .vocabulary = 32};
    set_architecture(config, *find_architecture(kind));
    config.tie_embeddings = std::string(kind) == "gpt2";
    // Of GPT-2's three fused layers only two have adapters: the rows of the third keep their norms.
    config.lora = {.rank = 2,
                   .alpha = 4,
                   .targets = {"query", "value", "mlp.down"},
                   .dropout = 0.125,
                   .rslora = true,
                   .dora = true,
                   .saved = {"embedding", "head"}};
    const NamedTensors all = values_of(config);
    const TemporaryFolder folder;
    write_peft(folder.path(), config, all, "a/base");
    ModelConfig base = config;
    base.lora = {};
    ModelConfig read = base;
    read.lora = read_peft_config(folder.path(), base).lora;
    EXPECT_TRUE(read.lora.dora && read.lora.rslora);
    EXPECT_EQ(read.lora.dropout, 0.125);
    EXPECT_EQ(read.lora.saved, config.lora.saved);
    NamedTensors before = without_adapters(all);
    const NamedTensors merged = with_adapters_merged(config, all);
    std::map<std::string, at::Tensor> values(before.begin(), before.end());
    for (const auto& [name, tensor] : read_peft(folder.path(), read)) values.insert_or_assign(name, tensor);
    const auto again = with_adapters_merged(read, {values.begin(), values.end()});
    ASSERT_EQ(again.size(), merged.size());
    const std::map<std::string, at::Tensor> by_name(again.begin(), again.end());
    for (const auto& [name, tensor] : merged) {
      EXPECT_TRUE(at::allclose(by_name.at(name), tensor, 1e-5, 1e-6)) << kind << " " << name;
    }
  }
}

TEST(PeftOfTied, NeedsEmbeddingAndHead) {
  ModelConfig config{.layers = 1, .width = 16, .heads = 2, .context = 8, .vocabulary = 32};
  set_architecture(config, *find_architecture("llama"));
  config.tie_embeddings = false;
  config.lora = {.rank = 2, .alpha = 4, .targets = {"query"}, .saved = {"embedding", "head"}};
  const TemporaryFolder folder;
  write_peft(folder.path(), config, values_of(config), "a/base");
  ModelConfig tied = config;
  tied.lora = {};
  tied.tie_embeddings = true;
  ModelConfig adapted = tied;
  adapted.lora = read_peft_config(folder.path(), tied).lora;
  EXPECT_THAT(message_of<DataError>([&] { read_peft(folder.path(), adapted); }),
              HasSubstr("differs from the embedding"));
  config.lora.saved = {"embedding"};
  write_peft(folder.path(), config, values_of(config), "a/base");
  EXPECT_THAT(message_of<DataError>([&] { read_peft_config(folder.path(), tied); }),
              HasSubstr("both in modules_to_save"));
}

TEST_F(Peft, WeightsThatAreNotFiniteAreNamed) {
  for (const double value : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    for (size_t i : {size_t{0}, weights_.size() - 1}) {
      NamedTensors changed = weights_;
      changed[i].second = changed[i].second.clone();
      changed[i].second.view(-1)[5].fill_(value);
      write_tensors(folder_ / kPeftWeights, changed);
      EXPECT_THAT(message_of<DataError>([&] { read(); }),
                  AllOf(HasSubstr(kPeftWeights), HasSubstr(changed[i].first + " has a value that is not finite")));
    }
  }
}

/// A head of classes, which the base model lacks, is saved beside the adapters.
TEST(PeftOfClasses, HasTheHead) {
  for (const char* kind : {"llama", "bert"}) {
    ModelConfig config{.layers = 2, .width = 16, .heads = 2, .context = 8, .vocabulary = 32};
    set_architecture(config, *find_architecture(kind));
    config.classes = 3;
    config.lora = {.rank = 2, .alpha = 4, .targets = {"query"}};
    const NamedTensors all = values_of(config);
    const TemporaryFolder folder;
    write_peft(folder.path(), config, all, "a/base");
    const json root = json::parse(read_file(folder / kPeftConfig));
    const bool is_bert = std::string(kind) == "bert";
    EXPECT_EQ(root["task_type"], "SEQ_CLS");
    EXPECT_EQ(root["modules_to_save"], is_bert ? json({"classifier", "pooler"}) : json({"score"}));
    ModelConfig base = config;
    base.lora = {};
    ModelConfig adapted = base;
    adapted.lora = read_peft_config(folder.path(), base).lora;
    const NamedTensors read = read_peft(folder.path(), adapted);
    EXPECT_EQ(read.size(), 4U + (is_bert ? 4U : 1U));
    for (const auto& [name, tensor] : read) {
      const auto same = std::ranges::find(all, name, &NamedTensors::value_type::first);
      ASSERT_NE(same, all.end()) << name;
      EXPECT_TRUE(tensor.equal(same->second)) << name;
    }
    EXPECT_EQ(peft_classes(folder.path(), base), 3);
    ModelConfig without = base;
    without.classes = 0;
    EXPECT_THAT(message_of<DataError>([&] { read_peft_config(folder.path(), without); }),
                HasSubstr("belongs to no linear layer"));
  }
  ModelConfig t5{.layers = 2, .width = 16, .heads = 2, .context = 8, .vocabulary = 32};
  set_architecture(t5, *find_architecture("t5"));
  t5.encoder_layers = 1;
  t5.source_context = 8;
  t5.lora = {.rank = 2, .alpha = 4, .targets = {"query"}};
  EXPECT_EQ(json::parse(peft_config(t5, "a/base"))["task_type"], "SEQ_2_SEQ_LM");
}

/// Checked with PEFT 0.21, which takes "gate_proj" among target_modules for experts, and drops the layer.
TEST(PeftOfExperts, DenseLayersBesideThemAreNamedByTheirWeights) {
  ModelConfig config{.layers = 2, .width = 16, .heads = 2, .context = 8, .vocabulary = 32};
  set_architecture(config, *find_architecture("qwen3_moe"));
  config.moe = {.experts = 2, .dense_layers = LayerSet::parse("0")};
  config.lora = {.rank = 2, .alpha = 4, .targets = {"query", "mlp.*"}, .dropout = 0};
  const NamedTensors all = values_of(config);
  const TemporaryFolder folder;
  write_peft(folder.path(), config, all, "a/base");
  const json root = json::parse(read_file(folder / kPeftConfig));
  EXPECT_EQ(root["target_modules"], json({"q_proj"}));
  EXPECT_EQ(root["target_parameters"],
            json({"model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight",
                  "model.layers.0.mlp.down_proj.weight", "model.layers.1.mlp.experts.gate_up_proj",
                  "model.layers.1.mlp.experts.down_proj"}));
  ModelConfig read = config;
  read.lora = {};
  read.lora = read_peft_config(folder.path(), read).lora;
  std::vector<std::string> adapted, wanted;
  for (const LinearShape& layer : adapted_layers(read)) adapted.push_back(layer.name);
  for (const LinearShape& layer : adapted_layers(config)) wanted.push_back(layer.name);
  EXPECT_EQ(adapted, wanted);

  config.lora = {.rank = 2, .alpha = 4, .targets = {"blocks.0.mlp.*"}, .dropout = 0.125};
  EXPECT_EQ(json::parse(peft_config(config, "a/base"))["lora_dropout"], 0) << "PEFT has none of parameters";
  config.lora.dora = true;
  EXPECT_THAT(message_of<UsageError>([&] { peft_config(config, "a/base"); }), HasSubstr("no DoRA of it"));
}

TEST(PeftOfExperts, WhatPeftHasNotIsRefused) {
  ModelConfig config{.layers = 1, .width = 16, .heads = 2, .context = 8, .vocabulary = 32};
  set_architecture(config, *find_architecture("mixtral"));
  config.moe = {.experts = 2};
  config.lora = {.rank = 2, .alpha = 4, .targets = {"experts.*"}};
  NamedTensors all = values_of(config);
  const TemporaryFolder folder;
  write_peft(folder.path(), config, all, "a/base");
  ModelConfig base = config;
  base.lora = {};
  const auto refusal = [&] { return message_of<DataError>([&] { read_peft_config(folder.path(), base); }); };
  const std::string settings = read_file(folder / kPeftConfig);
  json root = json::parse(settings);
  root["use_dora"] = true;
  write_file(folder / kPeftConfig, root.dump());
  EXPECT_THAT(refusal(), AllOf(HasSubstr("sets use_dora, and target_parameters"), HasSubstr("no magnitudes")));

  // As transformers 4 named them.
  write_file(folder / kPeftConfig, settings);
  NamedTensors theirs = to_peft(config, all);
  const std::string name = "base_model.model.model.layers.0.block_sparse_moe.experts.1.w1.lora_A.weight";
  theirs.emplace_back(name, at::ones({2, 16}));
  write_tensors(folder / kPeftWeights, theirs);
  EXPECT_THAT(refusal(), AllOf(HasSubstr(name + " is of a single expert"), HasSubstr("with transformers 5")));
  theirs.back().first = "base_model.model.model.layers.0.experts.lora_A.weight";
  write_tensors(folder / kPeftWeights, theirs);
  EXPECT_THAT(refusal(), HasSubstr("belongs to no linear layer"));
}

}  // namespace
}  // namespace caravan::peft_test
